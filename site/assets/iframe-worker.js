/* Search runs in a worker, and browsers start none for a page that was opened from a file: there, the worker's script runs in
   a hidden frame that is given a worker's two verbs, to post a message and to import scripts. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      const page = frame.contentDocument
      page.open()
      page.write("<!doctype html><title>search</title><body>")
      page.close()
      const load = (src) =>
        new Promise((done, failed) => {
          const script = page.createElement("script")
          script.src = src
          script.onload = done
          script.onerror = failed
          page.body.append(script)
        })
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...all) => all.reduce((before, src) => before.then(() => load(src)), Promise.resolve())
      this.tell = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }))
      load(String(address)).then(() => {
        this.waiting.forEach(this.tell)
        this.waiting = null
      })
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.tell(data)
    }
  }
}
