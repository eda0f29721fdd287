"""`baton chat`: names and options alone, as in `cli.main`; what the command needs is imported when it runs."""

from typing import Annotated

from cli import request_options as given
from cli.start import interrupts_exit

with interrupts_exit():
    import typer


def chat(
    target: given.TargetOption = "localhost:50051",
    system: Annotated[str | None, typer.Option(help="The system message before all others.")] = None,
    stats: given.StatsOption = False,
    timeout: given.TimeoutOption = 600.0,
    temperature: given.TemperatureOption = None,
    top_k: given.TopKOption = None,
    top_p: given.TopPOption = None,
    min_p: given.MinPOption = None,
    repetition_penalty: given.RepetitionPenaltyOption = None,
    frequency_penalty: given.FrequencyPenaltyOption = None,
    presence_penalty: given.PresencePenaltyOption = None,
    logit_bias: given.LogitBiasOption = None,
    seed: given.SeedOption = None,
    max_tokens: given.MaxTokensOption = None,
    min_tokens: given.MinTokensOption = None,
    stop: given.StopOption = None,
    model: given.ModelOption = None,
    cache_salt: given.CacheSaltOption = None,
    priority: given.PriorityOption = None,
    no_resume: given.NoResumeOption = False,
) -> None:
    """Converse on the terminal, a line a turn, with the model's own chat template.

    All that was said is sent with each turn; the services compute what is new in it only: see `cached` in --stats.

    Commands: /reset, /system TEXT, /help, /exit. Ctrl-C while an answer comes stops it, and what has come is kept.

    Lines may come through a pipe; then the exit code is 1 if a turn failed. A turn that fails is left out of the rest.
    """
    with interrupts_exit():
        from baton_client import Options, Sampling, Stopping
        from cli.calls import Target
        from cli.chat import run
        from cli.request_syntax import parse_logit_bias

    options = Options(
        sampling=Sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            logit_bias=parse_logit_bias(logit_bias or ()) or None,
            seed=seed,
        ),
        stopping=Stopping(max_tokens=max_tokens, min_tokens=min_tokens, stop=tuple(stop or ())),
        model=model or "",
        cache_salt=cache_salt or "",
    )
    if priority is not None:
        options["priority"] = priority
    raise typer.Exit(run(Target(target, timeout, not no_resume), system, options, stats))
