//! What a GPU and its links can do.

use crate::dtype::Dtype;

/// A machine profile: measured once, stored as data. Rates are per GPU.
#[derive(Clone, PartialEq, Debug)]
pub struct Machine {
    /// Its name in reports.
    pub name: &'static str,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Bytes a second from device memory.
    pub memory: f64,
    /// Dense 16-bit matrix FLOP a second that a good GEMM sustains.
    pub flops: f64,
    /// Bytes a second one direction of its link carries when a copy engine moves large chunks.
    pub link_copy_engine: f64,
    /// Bytes a second when CTAs push.
    pub link_push: f64,
    /// Bytes a second when CTAs pull.
    pub link_pull: f64,
    /// Bytes a second one pushing CTA reaches.
    pub link_push_cta: f64,
    /// Seconds from a signal to the waiter's next instruction on another GPU.
    pub signal_latency: f64,
    /// Seconds one copy-engine operation costs before its first byte.
    pub copy_engine_latency: f64,
    /// Seconds from enqueueing a kernel to its first instruction.
    pub launch_latency: f64,
}

impl Machine {
    /// One H200 of an NV18 NVSwitch domain, as measured (4 × H200, driver 580): 394 GB/s by copy engine with 8.5 µs
    /// fixed cost, 350 GB/s pushed by 8 CTAs of 46 GB/s each, 331 GB/s pulled, 2.44 µs for a flag round trip,
    /// 790 TFLOP/s bf16, 4.3 TB/s memory.
    pub fn h200() -> Machine {
        Machine {
            name: "H200 NV18",
            sms: 132,
            memory: 4.3e12,
            flops: 790e12,
            link_copy_engine: 394e9,
            link_push: 350e9,
            link_pull: 331e9,
            link_push_cta: 46e9,
            signal_latency: 1.22e-6,
            copy_engine_latency: 8.5e-6,
            launch_latency: 3e-6,
        }
    }

    /// Sustained FLOP a second with operands of that type (f32 operands run as tf32, at half the 16-bit rate).
    pub fn flops_of(&self, dtype: Dtype) -> f64 {
        match dtype {
            Dtype::Bf16 | Dtype::F16 => self.flops,
            Dtype::F32 => self.flops / 2.0,
        }
    }
}
