//! Functions of another language, compiled: what their text may call needs no header and no memory.

use crate::foreign_functions::{bent, gemm, soft_cap};
use crate::sass::{all_pass, nvidia};
use counterflow::Variant;
use counterflow::codegen::value::Foreign;
use counterflow::jit::{Source, Target};
use std::fmt::Write;

/// A call of a function, on numbers of the types that it takes.
fn call(name: &str) -> String {
    match name {
        "fma" | "fmaf" => format!("{name}(x, y, z)"),
        "__clz" | "__brev" | "__popc" => format!("float({name}(int(x)))"),
        "__int_as_float" | "__uint_as_float" => format!("{name}(int(x))"),
        "atan2" | "atan2f" | "copysignf" | "fdimf" | "fmax" | "fmaxf" | "fmin" | "fminf"
        | "hypot" | "hypotf" | "max" | "min" | "pow" | "powf" | "rhypot" | "rhypotf"
        | "__fdividef" | "__powf" => {
            format!("{name}(x, y)")
        }
        _ => format!("float({name}(x))"),
    }
}

#[test]
fn what_a_text_may_call_needs_no_header_and_no_memory() {
    let Some(compiler) = nvidia::caching_compiler() else {
        return;
    };
    let mut text = String::new();
    for name in Foreign::callable() {
        let _ = writeln!(
            text,
            "extern \"C\" __global__ void of_{name}(float* p) {{
    const float x = p[0], y = p[1], z = p[2];
    p[3] = y + z + {};
}}",
            call(name)
        );
    }
    // Memory is seen where there is some.
    text += "extern \"C\" __global__ void of_memory(float* p) {
    float all[16];
    for (int k = 0; k < 16; ++k) all[int(p[k]) & 15] = p[k];
    p[16] = all[int(p[17]) & 15];
}";
    let compiled = compiler.compile(&Source::new("callable", &text), Target::Sm90a);
    let compiled = compiled.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(compiled.facts.len(), 1 + Foreign::callable().count());
    let frames = compiled.facts.iter().filter(|facts| facts.frame > 0);
    let frames: Vec<&str> = frames.map(|facts| facts.name.as_str()).collect();
    assert_eq!(frames, ["of_memory"]);
}

/// Their texts are what cubecl makes: `cube/tests` says so.
#[test]
fn products_with_a_foreign_function_pass_the_sass_checks() {
    let cases = [soft_cap(), bent()].map(|function| {
        let program = gemm(&function, (128, 256));
        (program, Variant::new(4))
    });
    all_pass(&cases);
}
