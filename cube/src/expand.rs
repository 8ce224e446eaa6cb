//! A `#[cube]` function as text: cubecl expands it to its own operations, and prints those.

use crate::rename::renamed;
use counterflow_codegen::value::{Foreign, ScalarFn};
use cubecl_core::codegen::{KernelExpansion, KernelIntegrator};
use cubecl_core::ir::{AddressType, ElemType, FloatKind, Instruction, Operation, Scope, Type};
use cubecl_core::ir::{Variable, VariableKind};
use cubecl_core::prelude::{KernelSettings, NativeExpand};
use cubecl_core::{Compiler, ExecutionMode};
use cubecl_cpp::cuda::{CudaDialect, mma::CudaWmmaCompiler};
use cubecl_cpp::shared::{CompilationOptions, CppCompiler};
use std::fmt::{self, Write};

/// An argument or result while cubecl expands a function.
pub type Number = NativeExpand<f32>;

/// Why cubecl has no text for a function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The function's name.
    pub name: &'static str,
    /// cubecl's reason.
    pub why: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cubecl has no text for `{}`: {}", self.name, self.why)
    }
}

impl std::error::Error for Refused {}

/// A function that a schedule may call: its text by `expand`, which is cubecl's function of that name beside a `#[cube]`
/// function, and its twin on the host. [`epilogue!`](crate::epilogue) calls it.
///
/// ```
/// mod caps {
///     use counterflow_cube::cubecl::{self, prelude::*};
///
///     #[cube]
///     pub fn scaled(x: f32, by: f32, #[comptime] twice: bool) -> f32 {
///         let mut scaled = x * by;
///         if twice {
///             scaled *= 2.0f32;
///         }
///         scaled
///     }
/// }
/// let twice = counterflow_cube::function(
///     "twice_scaled",
///     &["x", "by"],
///     |scope, [x, by]| caps::scaled::expand(scope, x, by, true),
///     |numbers| numbers[0] * numbers[1] * 2.0,
/// );
/// assert_eq!(twice?.eval(&[3.0, 0.5]), 3.0);
/// # Ok::<(), counterflow_cube::Refused>(())
/// ```
///
/// # Errors
/// cubecl's own, where it has no text for the function.
pub fn function<const N: usize>(
    name: &'static str,
    params: &'static [&'static str; N],
    expand: impl FnOnce(&mut Scope, [Number; N]) -> Number,
    twin: fn(&[f32]) -> f32,
) -> Result<ScalarFn, Refused> {
    let text = text(params, expand).map_err(|why| Refused { name, why })?;
    Ok(ScalarFn {
        name,
        params,
        body: Foreign::new(text, twin).into(),
    })
}

/// The function's body in CUDA.
fn text<const N: usize>(
    params: &[&str; N],
    expand: impl FnOnce(&mut Scope, [Number; N]) -> Number,
) -> Result<String, String> {
    // Not by a `KernelBuilder`, which reads a file for how much to log.
    let mut scope = Scope::root(false);
    AddressType::U32.register(&mut scope);
    let number = Type::scalar(ElemType::Float(FloatKind::F32));
    let arguments: [Number; N] = std::array::from_fn(|_| scope.create_local(number).into());
    let names: Vec<String> = arguments.iter().map(|of| printed(*of.expand)).collect();
    let result = expand(&mut scope, arguments);
    let returned = *scope.create_local(number);
    scope.register(Instruction::new(Operation::Copy(*result.expand), returned));
    let kernel = KernelIntegrator::new(KernelExpansion {
        scope,
        buffers: Vec::new(),
        scalars: Vec::new(),
        tensor_maps: Vec::new(),
    });
    let kernel = kernel.integrate(KernelSettings::default());
    let mut options = CompilationOptions::default();
    options.supports_features.fast_math = true;
    let mut compiler = CppCompiler::<CudaDialect<CudaWmmaCompiler>>::default();
    let address = AddressType::U32.unsigned_type();
    let compiled = compiler.compile(kernel, &options, ExecutionMode::Unchecked, address);
    let compiled = compiled.map_err(|error| error.to_string())?;
    let mut statements = String::new();
    for instruction in &compiled.body.instructions {
        write!(statements, "{instruction}").map_err(|error| error.to_string())?;
    }
    // What is copied last is what is returned.
    let last = format!("const float {} = ", printed(returned));
    let names = names.iter().map(String::as_str).zip(params.iter().copied());
    Ok(renamed(
        &statements.replace(&last, "return "),
        &names.collect::<Vec<_>>(),
    ))
}

/// A variable's name as cubecl prints it.
fn printed(variable: Variable) -> String {
    match variable.kind {
        VariableKind::LocalConst { id } => format!("l_{id}"),
        _ => String::new(),
    }
}
