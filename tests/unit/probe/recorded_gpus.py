"""Readings of a healthy GPU, and nvidia-smi's output by generation of the driver."""

from __future__ import annotations

from dataclasses import replace

from trialfleet.nodes.probe.readings import Gpu, Readings

# The shape of nvidia-smi's XML by generation: drivers 535 and later, 515, and a Pascal GPU.
AMPERE = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><driver_version>550.54.15</driver_version><cuda_version>12.4</cuda_version>
<attached_gpus>2</attached_gpus>
<gpu id="00000000:00:1B.0"><product_name>NVIDIA A10G</product_name>
 <uuid>GPU-0a000000-0000-0000-0000-000000000001</uuid>
 <pci><pci_bus_id>00000000:00:1B.0</pci_bus_id><pci_gpu_link_info>
  <pcie_gen><max_link_gen>4</max_link_gen><current_link_gen>1</current_link_gen>
   <max_device_link_gen>4</max_device_link_gen></pcie_gen>
  <link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width>
  </link_widths></pci_gpu_link_info></pci>
 <temperature><gpu_temp>31 C</gpu_temp><gpu_temp_max_threshold>98 C</gpu_temp_max_threshold>
 </temperature>
 <gpu_power_readings><power_state>P8</power_state><average_power_draw>N/A</average_power_draw>
  <instant_power_draw>16.25 W</instant_power_draw>
  <current_power_limit>300.00 W</current_power_limit>
 </gpu_power_readings>
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
<gpu id="00000000:00:1C.0"><product_name>NVIDIA A10G</product_name>
 <uuid>GPU-0a000000-0000-0000-0000-000000000002</uuid>
 <gpu_power_readings><power_draw>N/A</power_draw></gpu_power_readings>
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
 <power_readings><power_draw>27.00 W</power_draw><power_limit>70.00 W</power_limit>
  <enforced_power_limit>70.00 W</enforced_power_limit></power_readings>
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

# A GPU as nvidia-smi describes it, with the probe's measurements.
TOLD = Gpu(
    index=0,
    name="NVIDIA A10G",
    uuid="GPU-0a000001-0000-0000-0000-000000000000",
    pci="0000:00:1b",
    ecc_uncorrected=0,
    repair_pending=False,
    repair_failed=False,
    reset_required=False,
    watts=16.25,
    watts_limit=300.0,
    celsius=31.0,
    pcie_generation=1,
    pcie_generation_max=4,
    pcie_width=16,
    pcie_width_max=16,
)
GOOD = replace(
    TOLD,
    launch_microseconds=18.25,
    launch_rate=150_000.0,
    bandwidth=482.0,
    host_bandwidth=12.5,
    matmul_error=0.0,
)
OTHER = replace(GOOD, index=1, uuid="GPU-0b000002-0000-0000-0000-000000000000", pci="0000:00:1c")
HEALTHY = Readings(driver="550.54.15", cuda="12.4", gpus=(GOOD,), xids=(), kernels=True)
