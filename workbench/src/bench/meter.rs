//! The GPU's clock and power during a run. Without them a time means little.

use super::stats::Spread;
use counterflow_runtime::driver::Gpu;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::Clock;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The time between two readings. The driver itself reads power no faster.
const PERIOD: Duration = Duration::from_millis(20);

/// Clock of the SMs and power of the board over some time.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Reading {
    /// MHz.
    pub clock: Spread,
    /// Watts.
    pub power: Spread,
}

/// NVIDIA's management library, or why there is none.
pub(super) fn library() -> Result<&'static Nvml, String> {
    static NVML: OnceLock<Result<Nvml, String>> = OnceLock::new();
    NVML.get_or_init(|| Nvml::init().map_err(|error| error.to_string()))
        .as_ref()
        .map_err(Clone::clone)
}

/// Runs `f` and reads the GPU's clock and power meanwhile, if this machine allows it.
pub(super) fn watch<T>(gpu: &Gpu, f: impl FnOnce() -> T) -> (T, Option<Reading>) {
    let device = library()
        .ok()
        .zip(gpu.cuda().and_then(|gpu| gpu.uuid()).ok())
        .and_then(|(nvml, uuid)| nvml.device_by_uuid(uuid).ok());
    let Some(device) = device else {
        return (f(), None);
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut clock, mut power) = (Vec::new(), Vec::new());
            while !done.load(Ordering::Relaxed) {
                clock.extend(device.clock_info(Clock::SM).ok().map(f64::from));
                power.extend(
                    device
                        .power_usage()
                        .ok()
                        .map(|milli| f64::from(milli) / 1e3),
                );
                std::thread::sleep(PERIOD);
            }
            Reading {
                clock: Spread::of(&clock),
                power: Spread::of(&power),
            }
        });
        let stop = Stop(&done);
        let result = f();
        drop(stop);
        (result, reader.join().ok())
    })
}

/// Ends the reader, also if `f` panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
