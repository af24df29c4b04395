"""Words that say little about what a text is about: English function words, and the words that make a question."""

STOP = frozenset(
    """
    a an the and or but nor if then else so than that this these those there here it its it's he him his she her hers
    they them their theirs we us our ours you your yours i me my mine who's what's
    is are was were be been being am do does did doing done don't doesn't didn't isn't aren't wasn't weren't
    has have had having will would shall should can could may might must cannot can't won't
    of in on at by for from to with without into onto about as over under between through during before after above
    below up down out off again further also any all some each both few more most other such only own same too very
    just not no yes ll re ve one's please us
    """.split()
)

# Stop words that turn a question into another one.
NEGATIONS = frozenset("not no cannot nor".split())
TURNS = frozenset("with without before after from to".split())

ASKING = frozenset("what which who whom whose when where why how whether whatever".split())
