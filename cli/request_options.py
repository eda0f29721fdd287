"""Options of a request, for every command that sends one. Bounds are the server's to check, types are checked here."""

from pathlib import Path
from typing import Annotated

from cli.start import interrupts_exit

with interrupts_exit():
    import typer

PROMPT, SAMPLING, CONSTRAINT, STOPPING, OUTPUT, REQUEST = (
    "Prompt",
    "Sampling",
    "Constraint: one kind at most",
    "Stopping",
    "Output",
    "Request",
)
"""The panels of `--help`."""

TargetOption = Annotated[
    str, typer.Option(envvar="BATON_TARGET", help="host:port of a decode service; several, joined by commas.")
]
StatsOption = Annotated[bool, typer.Option("--stats", help="Print usage and timings to standard error.")]
TimeoutOption = Annotated[float, typer.Option(help="Seconds for a whole call, more than 0.")]

TokenIdsPromptOption = Annotated[
    bool,
    typer.Option(
        "--prompt-token-ids", help="PROMPT is token ids, parted by commas or white space.", rich_help_panel=PROMPT
    ),
]
ChatOption = Annotated[bool, typer.Option("--chat", help="PROMPT is a user's message.", rich_help_panel=PROMPT)]
SystemOption = Annotated[
    str | None, typer.Option(help="With --chat: the system message before it.", rich_help_panel=PROMPT)
]
MessagesOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help='A chat in place of PROMPT: a JSON list of {"role": …, "content": …}, with the roles system, user, '
        "assistant and tool; '-' is standard input.",
        rich_help_panel=PROMPT,
    ),
]
NoGenerationPromptOption = Annotated[
    bool,
    typer.Option(
        "--no-generation-prompt",
        help="End a chat where its last message ends, and not where an answer begins.",
        rich_help_panel=PROMPT,
    ),
]
EmbeddingsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.npy",
        help="Vectors in place of PROMPT: a float32 array of tokens × hidden size, or a uint16 one with the bits of "
        "bfloat16; at most 64 MiB.",
        rich_help_panel=PROMPT,
    ),
]

TemperatureOption = Annotated[
    float | None, typer.Option(help="0 is greedy. In [0, 100]; default 1.", rich_help_panel=SAMPLING)
]
TopKOption = Annotated[
    int | None,
    typer.Option(min=0, help="Keep the k most likely tokens. 0, the default, keeps all.", rich_help_panel=SAMPLING),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        help="Keep the fewest tokens whose probability reaches this. In (0, 1]; default 1.", rich_help_panel=SAMPLING
    ),
]
MinPOption = Annotated[
    float | None,
    typer.Option(
        help="Drop tokens less likely than this share of the most likely one. In [0, 1]; default 0.",
        rich_help_panel=SAMPLING,
    ),
]
RepetitionPenaltyOption = Annotated[
    float | None,
    typer.Option(
        help="Above 1: tokens of prompt and completion get less likely. In (0, 100]; default 1.",
        rich_help_panel=SAMPLING,
    ),
]
FrequencyPenaltyOption = Annotated[
    float | None,
    typer.Option(
        help="Subtracted from a token's logit each time it is generated. In [-2, 2]; default 0.",
        rich_help_panel=SAMPLING,
    ),
]
PresencePenaltyOption = Annotated[
    float | None,
    typer.Option(
        help="Subtracted once from the logit of a generated token. In [-2, 2]; default 0.", rich_help_panel=SAMPLING
    ),
]
LogitBiasOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ID=VALUE",
        help="Add to the logit of a token id. In [-100, 100]; may be repeated, for 1024 ids at most.",
        rich_help_panel=SAMPLING,
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(min=0, help="Same seed, same output. Chosen by the server if not given.", rich_help_panel=SAMPLING),
]
CompletionsOption = Annotated[
    int | None,
    typer.Option(
        "--n",
        help="Completions of one prompt, which is computed once. From 1 to the rows of a decode batch; default 1.",
        rich_help_panel=SAMPLING,
    ),
]

JsonSchemaOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT|@FILE", help="JSON that this JSON Schema accepts comes out.", rich_help_panel=CONSTRAINT
    ),
]
RegexOption = Annotated[
    str | None,
    typer.Option(help="This regular expression matches all that comes out.", rich_help_panel=CONSTRAINT),
]
GrammarOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT|@FILE",
        help="A sentence of this grammar, in the notation of llguidance, comes out.",
        rich_help_panel=CONSTRAINT,
    ),
]
ChoiceOption = Annotated[
    list[str] | None,
    typer.Option(help="One of these comes out; to be repeated.", rich_help_panel=CONSTRAINT),
]

MaxTokensOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Most tokens to generate. Default: the server's default_max_tokens, or what the context leaves if less.",
        rich_help_panel=STOPPING,
    ),
]
MinTokensOption = Annotated[
    int | None,
    typer.Option(min=0, help="No stop before so many tokens; default 0.", rich_help_panel=STOPPING),
]
StopOption = Annotated[
    list[str] | None, typer.Option(help="End where this text appears; may be repeated.", rich_help_panel=STOPPING)
]
StopTokenIdOption = Annotated[
    list[int] | None, typer.Option(min=0, help="End at this token; may be repeated.", rich_help_panel=STOPPING)
]
IgnoreEosOption = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on after the end of sequence.", rich_help_panel=STOPPING)
]
IncludeStopOption = Annotated[
    bool, typer.Option("--include-stop", help="Leave the matched stop in the text.", rich_help_panel=STOPPING)
]

JsonLinesOption = Annotated[
    bool, typer.Option("--json", help="Print each message as one line of JSON.", rich_help_panel=OUTPUT)
]
TokenIdsOption = Annotated[
    bool, typer.Option("--token-ids", help="With --json: token ids beside the text.", rich_help_panel=OUTPUT)
]
LogprobsOption = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        help="Log-probabilities of the generated tokens and of the K most likely ones. In [0, 20]. Without --json a "
        "table follows the text.",
        rich_help_panel=OUTPUT,
    ),
]
PromptLogprobsOption = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        help="The same for the prompt's tokens but the first; the prompt is computed whole. In [0, 20].",
        rich_help_panel=OUTPUT,
    ),
]
NoSkipSpecialTokensOption = Annotated[
    bool,
    typer.Option("--no-skip-special-tokens", help="Leave special tokens in the text.", rich_help_panel=OUTPUT),
]

RequestIdOption = Annotated[str | None, typer.Option(help="Made by the server if not given.", rich_help_panel=REQUEST)]
ModelOption = Annotated[str | None, typer.Option(help="Refuse any other model.", rich_help_panel=REQUEST)]
CacheSaltOption = Annotated[
    str | None, typer.Option(help="Share cached prefixes with this salt only.", rich_help_panel=REQUEST)
]
PriorityOption = Annotated[int | None, typer.Option(help="Higher goes first; default 0.", rich_help_panel=REQUEST)]
ResumeFromOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="INDEX=IDS",
        help="Go on after these tokens of a completion, which the same request with the same seed gave before; may be "
        "repeated. They are counted, but not sent again.",
        rich_help_panel=REQUEST,
    ),
]
ResumeOption = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on with another decode service, or the same when it is back, where one is lost. Sets a seed.",
        rich_help_panel=REQUEST,
    ),
]
NoResumeOption = Annotated[
    bool,
    typer.Option(
        "--no-resume",
        help="Give an answer up when its decode service is lost, in place of going on with another.",
        rich_help_panel=REQUEST,
    ),
]
