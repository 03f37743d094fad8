"""A recurrent model for text: it reads symbols one after another and guesses the one that follows.

    symbols (batch, time) -> embedding -> lstm1 -> lstm2 -> the last state -> head -> (batch, n_outputs)

The recurrence is written with matrix products, because torch's own `nn.LSTM` is one fused operation that
cannot be run for a stack of models at once. The numbers are the same.

Reference: Caldas et al., LEAF: a benchmark for federated settings, 2018 (Shakespeare).
"""

import torch
from torch import Tensor, nn


class LSTM(nn.Module):
    """One layer of long short-term memory, (batch, time, n_inputs) -> (batch, time, n_hidden).

        i, f, g, o = from_input(x_t) + from_hidden(h)        input, forget, new content and output gates
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)            what is remembered
        h = sigmoid(o) * tanh(c)                             what is said

    `from_input` holds what `nn.LSTM` calls weight_ih and bias_ih, `from_hidden` weight_hh and bias_hh.
    """

    def __init__(self, n_inputs: int, n_hidden: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(n_inputs, 4 * n_hidden)
        self.from_hidden = nn.Linear(n_hidden, 4 * n_hidden)
        for parameter in self.parameters():  # as nn.LSTM starts, not as nn.Linear does
            nn.init.uniform_(parameter, -(n_hidden**-0.5), n_hidden**-0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        """The state after every symbol."""
        # The inputs of all times in one product; only the hidden state has to wait for the one before.
        gates = self.from_input(inputs)
        hidden = torch.zeros_like(gates[:, 0, : self.from_hidden.in_features])
        memory = hidden
        states = []
        for from_input in gates.unbind(1):
            enter, forget, content, leave = (from_input + self.from_hidden(hidden)).chunk(4, dim=1)
            memory = forget.sigmoid() * memory + enter.sigmoid() * content.tanh()
            hidden = leave.sigmoid() * memory.tanh()
            states.append(hidden)
        return torch.stack(states, dim=1)


class CharLSTM(nn.Module):
    """LEAF's net for Shakespeare: 819,920 parameters for 80 symbols and 80 outputs.

    >>> CharLSTM(80, 80)(torch.zeros(2, 20, dtype=torch.uint8)).shape
    torch.Size([2, 80])
    """

    def __init__(self, symbols: int, n_outputs: int, n_embedding: int = 8, n_hidden: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, n_embedding)
        self.lstm1 = LSTM(n_embedding, n_hidden)
        self.lstm2 = LSTM(n_hidden, n_hidden)
        self.head = nn.Linear(n_hidden, n_outputs)

    def forward(self, symbols: Tensor) -> Tensor:
        """Scores of the outputs after the last symbol, (batch, n_outputs)."""
        states = self.lstm2(self.lstm1(self.embedding(symbols.long())))
        scores: Tensor = self.head(states[:, -1])
        return scores
