"""Readings of GPUs, healthy and sick, and nvidia-smi's words by generation of the driver."""

from __future__ import annotations

from trialfleet.nodes.probe.readings import Gpu, Readings

# The shape of nvidia-smi's XML by generation: drivers 535 and later, 515, and a Pascal GPU.
AMPERE = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><driver_version>550.54.15</driver_version><cuda_version>12.4</cuda_version>
<attached_gpus>2</attached_gpus>
<gpu id="00000000:00:1B.0"><product_name>NVIDIA A10G</product_name><uuid>GPU-1</uuid>
 <gpu_reset_status><reset_required>No</reset_required></gpu_reset_status>
 <clocks_event_reasons>
  <clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
  <clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown>
 </clocks_event_reasons>
 <ecc_errors>
  <volatile><sram_correctable>9</sram_correctable>
   <sram_uncorrectable_parity>0</sram_uncorrectable_parity>
   <sram_uncorrectable_secded>0</sram_uncorrectable_secded>
   <dram_uncorrectable>0</dram_uncorrectable></volatile>
  <aggregate><dram_uncorrectable>7</dram_uncorrectable></aggregate>
 </ecc_errors>
 <remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_unc>1</remapped_row_unc>
  <remapped_row_pending>No</remapped_row_pending><remapped_row_failure>No</remapped_row_failure>
 </remapped_rows><processes></processes></gpu>
<gpu id="00000000:00:1C.0"><product_name>NVIDIA A10G</product_name><uuid>GPU-2</uuid>
 <gpu_reset_status><reset_required>Yes</reset_required></gpu_reset_status>
 <clocks_event_reasons>
  <clocks_event_reason_hw_slowdown>Active</clocks_event_reason_hw_slowdown>
  <clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown>
 </clocks_event_reasons>
 <ecc_errors><volatile><sram_uncorrectable_parity>1</sram_uncorrectable_parity>
  <dram_uncorrectable>2</dram_uncorrectable></volatile></ecc_errors>
 <remapped_rows><remapped_row_pending>Yes</remapped_row_pending>
  <remapped_row_failure>Yes</remapped_row_failure></remapped_rows>
 <retired_pages><pending_retirement>No</pending_retirement></retired_pages>
 <processes><process_info><pid>1188</pid></process_info></processes></gpu>
</nvidia_smi_log>"""
TURING = """<nvidia_smi_log><driver_version>515.105.01</driver_version>
<gpu id="00000000:00:1E.0"><product_name>Tesla T4</product_name><uuid>GPU-3</uuid>
 <clocks_throttle_reasons>
  <clocks_throttle_reason_hw_power_brake_slowdown>Active</clocks_throttle_reason_hw_power_brake_slowdown>
 </clocks_throttle_reasons>
 <ecc_errors><volatile><sram_uncorrectable>0</sram_uncorrectable>
  <dram_uncorrectable>4</dram_uncorrectable></volatile></ecc_errors>
 <retired_pages><pending_retirement>Yes</pending_retirement></retired_pages>
 <remapped_rows>N/A</remapped_rows></gpu></nvidia_smi_log>"""
PASCAL = """<nvidia_smi_log><driver_version>470.1</driver_version>
<gpu id="00000000:00:0B.0"><product_name>Tesla P4</product_name><uuid>GPU-4</uuid>
 <clocks_throttle_reasons>N/A</clocks_throttle_reasons>
 <ecc_errors><volatile><double_bit><device_memory>3</device_memory><total>3</total></double_bit>
 </volatile></ecc_errors></gpu>
<gpu id="00000000:00:0C.0"><product_name>GRID P4-1Q</product_name>
 <ecc_errors><volatile><double_bit><total>N/A</total></double_bit></volatile></ecc_errors>
</gpu></nvidia_smi_log>"""

GOOD = Gpu(
    index=0,
    name="NVIDIA A10G",
    uuid="GPU-1",
    ecc_uncorrected=0,
    repair_pending=False,
    repair_failed=False,
    reset_required=False,
    launch_microseconds=18.25,
    bandwidth=482.0,
    matmul_error=0.0,
)
HEALTHY = Readings(driver="550.54.15", gpus=(GOOD,), xids=(), check_pci_config_space=None)
