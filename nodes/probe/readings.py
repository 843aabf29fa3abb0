"""What the probe reads of a machine's GPUs, as plain data that goes to JSON and back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """One GPU; None stands for what the GPU or its driver doesn't tell.

    Attributes:
        index: its number, in the order of the PCI bus.
        name: such as `NVIDIA A10G`.
        uuid: such as `GPU-5135…`.
        ecc_uncorrected: memory errors since the driver was loaded that ECC couldn't correct.
        repair_pending: bad memory is set aside at the GPU's next reset.
        repair_failed: bad memory could not be set aside.
        reset_required: the driver wants the GPU reset.
        slowdowns: why the hardware slows down now, such as `hw_thermal_slowdown`.
        processes: programs that use it.
        launch_microseconds: launch of a small kernel until it is known to be done, median.
        bandwidth: GB/s (10^9 bytes) read plus written by a copy on the device.
        matmul_error: largest difference of a matrix product of small integers; 0 is right.
    """

    index: int
    name: str = ""
    uuid: str = ""
    ecc_uncorrected: int | None = None
    repair_pending: bool | None = None
    repair_failed: bool | None = None
    reset_required: bool | None = None
    slowdowns: tuple[str, ...] = ()
    processes: int = 0
    launch_microseconds: float | None = None
    bandwidth: float | None = None
    matmul_error: float | None = None


@dataclass(frozen=True)
class Readings:
    """What was read of a machine.

    Attributes:
        driver: version of the driver; empty without one.
        gpus: in the order of their numbers.
        xids: codes of the driver's errors in the kernel's log since boot, in order; None if the
            log can't be read.
        check_pci_config_space: the driver's option of that name, as /proc has it; None if this
            driver has none.
        problems: what went wrong, each enough to call the machine sick.
        not_measured: why speed was not measured; empty if it was.
    """

    driver: str = ""
    gpus: tuple[Gpu, ...] = ()
    xids: tuple[int, ...] | None = None
    check_pci_config_space: str | None = None
    problems: tuple[str, ...] = ()
    not_measured: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def of(cls, table: dict[str, Any]) -> Readings:
        """Return the readings in a table such as `as_json` makes.

        Raises:
            ValueError: a name is unknown, or a value of the wrong kind.
        """
        try:
            gpus = tuple(Gpu(**_tuples(gpu)) for gpu in table.get("gpus", ()))
            return replace(cls(**_tuples(table)), gpus=gpus)
        except (TypeError, AttributeError) as error:
            known = ", ".join(field.name for field in fields(cls))
            raise ValueError(f"{error}; readings have {known}") from error


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in table.items()}
