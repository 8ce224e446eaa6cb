//! A tensor's scales and amax: kernels have them as tensors of their own, and launches are given one value for all.

use super::argument::{Needs, ScaleUse};
use super::given::Argument;
use crate::error::Error;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::program::TensorId;

/// The tensors of a kernel that an argument is: itself, its scales and its amax.
pub(super) type Assigned<'a> = [Option<(TensorId, Argument<'a>)>; 3];

/// True if the tensor has neither scales nor an amax, and is given none.
pub(super) fn are_none(kernel: &Kernel, tensor: TensorId, argument: &Argument<'_>) -> bool {
    let mut planes = kernel
        .buffers
        .iter()
        .filter_map(|buffer| buffer.usage.plane);
    !argument.has_scales() && planes.all(|plane| plane.of != tensor)
}

/// Gives an argument to a tensor, and its scales and amax to theirs.
///
/// # Errors
/// [`Error::Usage`] for scales or an amax that the kernel has not, for those that it has and the argument has not, and for scales
/// of other elements.
pub(super) fn assign<'a>(
    kernel: &Kernel,
    tensor: TensorId,
    mut argument: Argument<'a>,
) -> Result<Assigned<'a>, Error> {
    let [scale, amax] = Needs::planes(kernel, tensor);
    let usage = kernel.buffers[tensor.index()].usage;
    let name = &kernel.buffers[tensor.index()].name;
    let refuse = |what: String, legal: String| Err(Error::Usage { what, legal });
    let (given_scale, given_amax) = argument.take_planes();
    let scale = match (scale, given_scale) {
        (None, None) => None,
        (Some(scale), Some((is, memory))) => {
            let wanted = ScaleUse::of(kernel, scale);
            if wanted != Some(is) {
                let wanted = wanted.map_or_else(String::new, |wanted| wanted.to_string());
                return refuse(
                    format!("{name} was given with {is}, and this op has {wanted}"),
                    match is {
                        ScaleUse::Quantises => "a product reads what codes are multiplied by: `QuantTensor::new(codes, scales, granularity)`",
                        ScaleUse::Dequantises(_) if usage.is_output() => "`QuantTensor::output(codes, multiplier)`: this launch multiplies its results by a number that it is given",
                        ScaleUse::Dequantises(_) => "quantise it with those scales, or build the op for these: `OpBuilder::scales`",
                    }
                    .into(),
                );
            }
            Some((scale, memory))
        }
        (Some(scale), None) => {
            let wanted = ScaleUse::of(kernel, scale);
            let wanted = wanted.map_or_else(String::new, |wanted| wanted.to_string());
            return refuse(
                format!("{name} was given without its scales"),
                format!(
                    "give a `QuantTensor` with {wanted}: `needs(\"{name}\")` says what it holds"
                ),
            );
        }
        (None, Some((is, _))) => {
            return refuse(
                format!("{name} was given with {is}, and this op has no scales there"),
                match usage.is_output() {
                    true => {
                        "build the op with `output` or `output_scales`, or give the codes alone"
                    }
                    false => "build the op with `scales`, or give the codes alone",
                }
                .into(),
            );
        }
    };
    let amax = match (amax, given_amax) {
        (Some(amax), Some(memory)) => Some((amax, memory)),
        (Some(_), None) => {
            return refuse(
                format!("{name} was given without its amax, which this op measures"),
                "`with_amax(number)` gives the `QuantTensor` one".into(),
            );
        }
        (None, Some(_)) if usage.is_output() => {
            return refuse(
                format!("{name} was given with an amax, and this op measures none"),
                "build the op with `amax`, or give a tensor without one".into(),
            );
        }
        // What an earlier launch measured says nothing to one that reads the tensor.
        (None, _) => None,
    };
    Ok([Some((tensor, argument)), scale, amax])
}
