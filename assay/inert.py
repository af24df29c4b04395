"""Text from outside inside a prompt: data, whatever it says of itself. It cannot open a turn of the chat, nor name a slot."""

import re

# What tokenizers read as the marks of turns, of tool calls or of thoughts, wherever in a text it stands.
_MARK = re.compile(
    r"<(?=[|｜])|<(?=/?(?:s|pad|bos|eos|unk|think|thinking|tool_call|tool_response|tools|start_of_turn|end_of_turn|<SYS>|<SYS>>)>)"
    r"|\[(?=/?(?:INST|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\])",
    re.IGNORECASE,
)
_PLAIN = {"<": "‹", "[": "("}
# Characters that no reader sees and models do read: the plane of tags, a copy of ASCII.
_UNSEEN = re.compile("[\U000e0000-\U000e007f]")
_SLOT = re.compile(r"[\[【]\s*+(E\d{1,4})\s*+[\]】]", re.IGNORECASE)


def inert(text: str) -> str:
    """The text without unseen characters, and with the brackets of special tokens replaced by ones that only look alike."""
    return _MARK.sub(lambda found: _PLAIN[found.group()], _UNSEEN.sub("", text))


def passage(text: str) -> str:
    """``inert``, for evidence: what looks like one of the prompt's own slots does not any more."""
    return _SLOT.sub(r"(\1)", inert(text))
