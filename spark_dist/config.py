"""The configuration of one run: frozen, nested, validated at the door.

Everything that decides the result of a run is in `RunConfig`; it is saved, resolved, as
`config.json` and with each checkpoint. No JAX here: the Ray driver imports this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .errors import UserError

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]


def _one_line(section: str, error: ValidationError) -> str:
    """Every complaint of a validation: field=value: what is wrong."""
    parts = []
    for found in error.errors():
        text = found["msg"].removeprefix("Value error, ")
        if not found["loc"]:  # a rule over several fields, whose text names them
            parts.append(text)
            continue
        name = ".".join(str(p) for p in found["loc"] if not str(p).startswith("function-"))
        shown = "" if found["type"] in ("missing", "extra_forbidden") else f"={found['input']!r}"
        parts.append(f"{section}{name}{shown}: {text[:1].lower()}{text[1:]}")
    return "; ".join(parts)


class Settings(BaseModel):
    """Base of every configuration object: frozen, keyword-only, no unknown fields.

    A value that does not fit raises UserError: one line naming field, value and what is allowed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    section: ClassVar[str] = ""
    """Prefix of the fields in messages and on the command line."""

    if not TYPE_CHECKING:  # keeps the field names of the generated signature for type checkers

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise UserError(_one_line(self.section, error)) from None


class ModelConfig(Settings):
    """Geometry of the decoder. Names are those of Gemma 2 and of the Spark Transformer paper."""

    section: ClassVar[str] = "model."

    vocab_size: Positive = 259
    """Rows of the embedding; must cover the tokenizer's vocabulary."""
    num_layers: Positive = 4
    d_model: Positive = 160
    num_heads: Positive = 4
    num_kv_heads: Positive = 4
    """Key/value heads; each serves num_heads / num_kv_heads query heads."""
    head_dim: Positive = 40
    d_ff: Positive = 648
    """Width of the FFN's hidden row."""
    ffn: Literal["gated", "spark", "gaussian_topk"] = "spark"
    """gated: Gemma 2's GELU gate. spark: arXiv 2506.06644. gaussian_topk: Gemma 3n's form."""
    ffn_predictor_dim: Positive = 80
    """r: leading input features that score the neurons (spark)."""
    ffn_k: NonNegative = 52
    """Target number of active neurons a token."""
    ffn_threshold: Literal["calibrated", "gaussian"] = "calibrated"
    """calibrated: the quantile follows the realised fraction. gaussian: the paper's, fixed."""
    ffn_selection: Literal["statistical", "top_k", "approx_max_k"] = "statistical"
    """What picks the active neurons; the last two are `jax.lax` peers kept for comparison."""
    attention: Literal["full", "spark"] = "spark"
    attention_predictor_dim: Positive = 20
    """r_attn: leading features of a head that score the keys (spark)."""
    attention_k: Positive = 32
    """Target number of attended keys a query."""
    local_window: Positive = 4096
    """Keys that a local layer sees, the query's own position included."""
    attention_pattern: tuple[Literal["local", "global"], ...] = ("local", "global")
    """Kinds of attention layers, repeated over depth."""
    attention_soft_cap: Annotated[float, Field(gt=0)] | None = 50.0
    """Soft cap of the full-attention logits; spark attention has none."""
    final_soft_cap: Annotated[float, Field(gt=0)] | None = 30.0
    rope_base: Annotated[float, Field(gt=1)] = 10_000.0
    query_scale: Annotated[float, Field(gt=0)] | None = None
    """Factor on the queries; head_dim ** -0.5 when not given."""
    norm_eps: Annotated[float, Field(gt=0)] = 1e-6

    @model_validator(mode="after")
    def _consistent(self) -> ModelConfig:
        def need(ok: bool, text: str) -> None:
            if not ok:
                raise ValueError(text)

        need(
            self.num_heads % self.num_kv_heads == 0,
            f"model.num_kv_heads={self.num_kv_heads} must divide "
            f"model.num_heads={self.num_heads}; use one of its divisors",
        )
        need(
            self.head_dim % 2 == 0,
            f"model.head_dim={self.head_dim} must be even for rotary positions; "
            f"use {self.head_dim + 1}",
        )
        need(bool(self.attention_pattern), "model.attention_pattern is empty; name local or global")
        if self.ffn != "gated":
            need(
                self.ffn_k <= self.d_ff,
                f"model.ffn_k={self.ffn_k} exceeds model.d_ff={self.d_ff}; lower ffn_k",
            )
        if self.ffn == "spark":
            need(
                self.ffn_predictor_dim < self.d_model,
                f"model.ffn_predictor_dim={self.ffn_predictor_dim} must be below "
                f"model.d_model={self.d_model}; half of d_model is usual",
            )
        if self.attention == "spark":
            r = self.attention_predictor_dim
            need(
                r < self.head_dim and r % 2 == 0 and (self.head_dim - r) % 2 == 0,
                f"model.attention_predictor_dim={r} must be even and below "
                f"model.head_dim={self.head_dim}; half of head_dim is usual",
            )
        return self

    @property
    def scale(self) -> float:
        """Factor on the queries before the products with the keys."""
        return self.head_dim**-0.5 if self.query_scale is None else self.query_scale

    @property
    def sparse_ffn(self) -> bool:
        return self.ffn != "gated"

    def layer_is_local(self, layer: int) -> bool:
        """Whether layer `layer` (from 0) sees only `local_window` keys."""
        return self.attention_pattern[layer % len(self.attention_pattern)] == "local"


class DataConfig(Settings):
    """What is read."""

    section: ClassVar[str] = "data."

    corpus: tuple[str, ...] = ()
    """Text, JSONL or Parquet files, folders, or one `data prepare` made; none: Shakespeare."""
    validation: tuple[str, ...] = ()
    """Held-out files; none: two plays, or every hundredth document of your own data."""
    text_field: str = "text"
    """Field or column that holds the text of JSONL and Parquet documents."""
    tokenizer: str = "byte"
    """"byte", or a SentencePiece (.model) or tokenizers (.json) file."""
    sequence_length: Positive = 128
    seed: NonNegative = 0
    """Order of the samples."""
    read_threads: NonNegative = 1
    """Threads that read ahead; 0 reads in the training thread."""
    prefetch_batches: Positive = 4


class OptimizerConfig(Settings):
    """AdamW and its learning-rate schedule."""

    section: ClassVar[str] = "optimizer."

    learning_rate: Annotated[float, Field(gt=0)] = 4e-3
    """Peak of the schedule."""
    warmup_steps: NonNegative = 40
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    """wsd: warm-up, stable, then linear decay over the last `decay_fraction`."""
    schedule_steps: Positive | None = None
    """Length of the schedule; trainer.steps of the first start when not given."""
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = 0.2
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate at the end, as a fraction of the peak."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    b1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    b2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: Annotated[float, Field(gt=0)] = 1e-8
    clip_norm: Annotated[float, Field(gt=0)] = 1.0


class TrainerConfig(Settings):
    """The loop around the step."""

    section: ClassVar[str] = "trainer."

    steps: Positive = 530
    global_batch_size: Positive = 12
    """Rows a step over all hosts."""
    grad_accumulation: Positive = 1
    """Micro-batches a step; divides the rows of each device."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the products; parameters and statistics stay float32."""
    remat: Literal["none", "full"] = "none"
    """full: recompute each layer in the backward pass."""
    seed: NonNegative = 0
    """Initial weights."""
    log_every: Positive = 10
    eval_every: NonNegative = 100
    """Steps between held-out evaluations; 0: only at the end."""
    eval_batches: NonNegative = 0
    """Global batches that an evaluation during training reads; 0: all. The last reads all."""
    checkpoint_every: NonNegative = 100
    """Steps between checkpoints; 0: only at the end."""
    keep_checkpoints: Positive = 2
    """Newest checkpoints kept, beside the best one."""
    max_consecutive_skips: Positive = 20
    """Skipped steps in a row after which the run stops as failed."""
    skip_loss_spikes: bool = False
    """Also skip a step whose loss is far above its running mean."""


class MeshConfig(Settings):
    """Sizes of the mesh axes; -1 takes the devices that are left."""

    section: ClassVar[str] = "mesh."

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    @model_validator(mode="after")
    def _consistent(self) -> MeshConfig:
        sizes = {"data": self.data, "fsdp": self.fsdp, "tensor": self.tensor}
        for name, size in sizes.items():
            if size != -1 and size < 1:
                raise ValueError(f"mesh.{name}={size} must be positive, or -1 for what is left")
        if list(sizes.values()).count(-1) > 1:
            raise ValueError(f"mesh {sizes} has more than one -1; fix all sizes but one")
        return self


class LoggingConfig(Settings):
    """Where measurements go besides metrics.jsonl and events.jsonl."""

    section: ClassVar[str] = "logging."

    trackers: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ("tensorboard",)
    project: str = "spark-dist"


class RunConfig(Settings):
    """One training run."""

    preset: str = "tiny"
    """Name of the preset that this configuration started from."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    trainer: TrainerConfig = TrainerConfig()
    mesh: MeshConfig = MeshConfig()
    logging: LoggingConfig = LoggingConfig()
    launcher: Literal["local", "ray"] = "local"
    """local: in this process. ray: one actor a host, on an embedded cluster or at `address`."""
    hosts: Positive = 1
    """Processes of the run, each owning all chips of its machine."""
    devices_per_host: Positive | None = None
    """CPU devices a host pretends to have (1 when not given); ignored on GPU and TPU."""
    address: str | None = None
    """Ray cluster to join; none: an embedded one is started and ended with the run."""
    startup_timeout: Annotated[float, Field(gt=0)] = 300.0
    """Seconds for all hosts to connect."""
    run_dir: str | None = None
    """Folder of the run; runs/PRESET when not given."""
    init_from: str | None = None
    """Run or checkpoint whose weights to start from; its optimizer and data order are left."""
    profile: Annotated[str, Field(pattern=r"^\d+:\d+$")] | None = None
    """FIRST:LAST steps to trace, for example 20:25."""

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if self.profile is not None:
            first, last = map(int, self.profile.split(":"))
            if not 0 < first <= last <= self.trainer.steps:
                raise ValueError(
                    f"profile={self.profile} must lie within 1:{self.trainer.steps}; "
                    "give FIRST:LAST with FIRST <= LAST <= trainer.steps"
                )
        batch, hosts = self.trainer.global_batch_size, self.hosts
        if batch % hosts:
            lower = batch - batch % hosts
            raise ValueError(
                f"trainer.global_batch_size={batch} is not divisible by hosts={hosts}; "
                f"use {max(lower, hosts)} or {lower + hosts}"
            )
        if self.launcher == "local" and hosts > 1:
            raise ValueError(f"hosts={hosts} needs --launcher ray; the local launcher has one host")
        return self

    def resolved(self) -> RunConfig:
        """The configuration with every default that depends on another field written out."""
        optimizer = self.optimizer.model_copy(
            update={"schedule_steps": self.optimizer.schedule_steps or self.trainer.steps}
        )
        run_dir = self.run_dir or f"runs/{self.preset}"
        return self.model_copy(update={"optimizer": optimizer, "run_dir": run_dir})
