"""`baton generate`: names and options alone, as in `cli.main`; what the command needs is imported when it runs."""

from typing import Annotated

from cli import request_options as given
from cli.start import interrupts_exit

with interrupts_exit():
    import typer


def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(help="What to continue or, with --chat, to answer; '-' reads it from standard input."),
    ] = None,
    target: given.TargetOption = "localhost:50051",
    stats: given.StatsOption = False,
    timeout: given.TimeoutOption = 600.0,
    chat: given.ChatOption = False,
    system: given.SystemOption = None,
    messages: given.MessagesOption = None,
    no_generation_prompt: given.NoGenerationPromptOption = False,
    prompt_token_ids: given.TokenIdsPromptOption = False,
    embeddings: given.EmbeddingsOption = None,
    temperature: given.TemperatureOption = None,
    top_k: given.TopKOption = None,
    top_p: given.TopPOption = None,
    min_p: given.MinPOption = None,
    repetition_penalty: given.RepetitionPenaltyOption = None,
    frequency_penalty: given.FrequencyPenaltyOption = None,
    presence_penalty: given.PresencePenaltyOption = None,
    logit_bias: given.LogitBiasOption = None,
    seed: given.SeedOption = None,
    n: given.CompletionsOption = None,
    json_schema: given.JsonSchemaOption = None,
    regex: given.RegexOption = None,
    grammar: given.GrammarOption = None,
    choice: given.ChoiceOption = None,
    max_tokens: given.MaxTokensOption = None,
    min_tokens: given.MinTokensOption = None,
    stop: given.StopOption = None,
    stop_token_id: given.StopTokenIdOption = None,
    ignore_eos: given.IgnoreEosOption = False,
    include_stop: given.IncludeStopOption = False,
    json_lines: given.JsonLinesOption = False,
    token_ids: given.TokenIdsOption = False,
    logprobs: given.LogprobsOption = None,
    prompt_logprobs: given.PromptLogprobsOption = None,
    no_skip_special_tokens: given.NoSkipSpecialTokensOption = False,
    request_id: given.RequestIdOption = None,
    model: given.ModelOption = None,
    cache_salt: given.CacheSaltOption = None,
    priority: given.PriorityOption = None,
    resume: given.ResumeOption = False,
    resume_from: given.ResumeFromOption = None,
) -> None:
    """Generate text, printed as it arrives.

    Without PROMPT, standard input is read if it is not a terminal; one line end at its end is dropped.

    With --n, completions are printed one after another, each under a line with its index.

    The server checks bounds, and refuses what is beyond them (exit code 1).
    """
    with interrupts_exit():
        from baton_client import Options, Output, Sampling, Stopping
        from cli.calls import Target
        from cli.generate import Display, run
        from cli.prompts import PromptSource
        from cli.request_syntax import parse_constraint, parse_logit_bias, parse_resumptions

    if token_ids and not json_lines:
        raise typer.BadParameter("--token-ids needs --json")
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
            n=n,
            constraint=parse_constraint(json_schema, regex, grammar, choice or ()),
        ),
        stopping=Stopping(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop=tuple(stop or ()),
            stop_token_ids=tuple(stop_token_id or ()),
            ignore_eos=ignore_eos,
            include_stop=include_stop,
        ),
        output=Output(
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            token_ids=token_ids,
            skip_special_tokens=False if no_skip_special_tokens else None,
        ),
        request_id=request_id or "",
        model=model or "",
        cache_salt=cache_salt or "",
        resumptions=parse_resumptions(resume_from or ()),
    )
    if priority is not None:
        options["priority"] = priority
    source = PromptSource(
        argument=prompt,
        is_chat=chat,
        system=system,
        is_token_ids=prompt_token_ids,
        messages=messages,
        embeddings=embeddings,
        ends_with_last_message=no_generation_prompt,
    )
    display = Display(json_lines, has_headings=(n or 1) > 1, stats=stats)
    run(Target(target, timeout, resume), source.read(), options, display)
