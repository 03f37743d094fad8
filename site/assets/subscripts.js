// A browser without a mathematical font sets subscripts on the line, where they read as factors: they are lowered here.
document.addEventListener("DOMContentLoaded", () => {
  const found = document.querySelector("msub > :nth-child(2)");
  if (!found) return;
  const [base, low] = [found.previousElementSibling, found].map((node) => node.getBoundingClientRect());
  if (low.bottom - base.bottom < 0.05 * base.height) document.documentElement.classList.add("level-subscripts");
});
