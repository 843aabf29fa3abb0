"""The GPU probe: are this machine's GPUs fit to train on, how fast are they, if not, why.

`python3 -m trialfleet.nodes.probe` measures, judges and prints attributes for HTCondor's
STARTD_CRON (`--classad`, the default) or all readings and the verdict as JSON (`--json`): in some
seconds, a minute at most. `readings.py` says what is read, `gather.py` reads it (the driver by
`nvidia_smi.py` or `nvml.py`, the kernel's log, speeds by `measure.py`), `models.py` has what a GPU
should reach, `verdict.py` (pure) judges.

`src/trialfleet/attributes.py` (PROBE) says what each attribute means. Of several GPUs each
figure is the worst one's: the slowest, the hottest; of those that trials get. What is not known is
undefined, never left out.
"""
