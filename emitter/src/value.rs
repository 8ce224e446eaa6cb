//! The math after the dot as functions: the user's own, then one for each value that is stored.

use super::Text;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::Side;
use counterflow_codegen::value::names::{function_identifier, identifier};
use counterflow_codegen::value::{Binary, Body, Compare, ScalarFn, Unary, Value};
use counterflow_codegen::warp::{Elements, Epilogue, FragmentOp, Node, Source};
use std::collections::BTreeSet;

impl Text<'_> {
    pub(super) fn epilogue_functions(&mut self) {
        let pipeline = self.pipeline;
        let mut functions = Vec::new();
        for epilogue in &pipeline.epilogues {
            epilogue.value.functions(&mut functions);
        }
        if !functions.is_empty() {
            self.line("// The schedule's #[epilogue] functions.");
            self.line("namespace epilogue {");
            for (index, function) in functions.iter().enumerate() {
                let params: Vec<String> = function
                    .params
                    .iter()
                    .map(|name| identifier(name))
                    .collect();
                let params = distinct(params);
                let name = function_name(&functions, index);
                match &function.body {
                    Body::Value(body) => self.function(&name, &params, body, &functions),
                    Body::Foreign(foreign) => self.foreign(&name, &params, &foreign.cuda),
                }
            }
            self.line("}  // namespace epilogue");
            self.line("");
        }
        let mut own_terms = BTreeSet::new();
        pipeline.visit(|node| {
            if let Node::Others {
                own: Some(FragmentOp::AddOwn { elements, .. }),
                ..
            } = node
                && let Elements::Applied(index) = elements
            {
                own_terms.insert(*index);
            }
        });
        let epilogues = pipeline.epilogues.iter().enumerate();
        for (index, epilogue) in epilogues.filter(|(_, it)| it.sum().is_none()) {
            let params = distinct(params(epilogue));
            self.line(match own_terms.contains(&index) {
                true => "// This rank's own term of a sum, before it is rounded.",
                false => "// What a store writes, before it is rounded.",
            });
            self.function(
                &identifier(&epilogue.name),
                &params,
                &named(epilogue),
                &functions,
            );
            self.line("");
        }
    }

    fn function(&mut self, name: &str, params: &[String], body: &Value, functions: &[&ScalarFn]) {
        self.block(signature(name, params), |text| {
            let mut printer = Printer {
                params,
                functions,
                parts: Vec::new(),
                uses: Vec::new(),
                names: Vec::new(),
                lines: Vec::new(),
            };
            printer.count(body);
            let result = printer.text(body, 0, true);
            printer.lines.iter().for_each(|line| text.line(line));
            text.line(format!("return {result};"));
        });
    }

    /// A function whose text is given, laid out by its braces.
    fn foreign(&mut self, name: &str, params: &[String], text: &str) {
        self.line("// In another language: this is what its compiler made of it.");
        self.line(format!("{} {{", signature(name, params)));
        self.depth += 1;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            self.depth -= usize::from(line.starts_with('}'));
            self.line(line);
            self.depth += usize::from(line.ends_with('{'));
        }
        self.depth -= 1;
        self.line("}");
    }

    /// Between this warp's share of a subtile of some type and registers: an array, of each of its blocks if it has
    /// several, and where in it.
    pub(super) fn subtile(
        &mut self,
        verb: &str,
        element: &str,
        (array, at): (&str, &str),
        shared: &str,
    ) {
        let first = self.first_on_m();
        let verb = match self.tiling().swap_ab() {
            true => format!("{verb}_transposed"),
            false => verb.to_string(),
        };
        let subtile = self.subtile_n();
        let Some(blocks) = self.blocks() else {
            return self.line(format!(
                "{verb}<{element}, {subtile}>({array}{at}, {shared}, {first}, lane);"
            ));
        };
        self.line("#pragma unroll");
        self.line(format!("for (u32 block = 0; block < {blocks}; ++block) {verb}<{element}, {subtile}>({array}[block]{at}, {shared}, {first} + block * 64, lane);"));
    }

    /// The registers of a product's accumulators: the array, and what lies before them in it.
    pub(super) fn accumulators(&self, product: usize) -> (String, String) {
        if self.tiling().multiplies().len() > 1 {
            let acc = self.pipeline.accumulators(self.tiling, product);
            return (acc, String::new());
        }
        let before = match product {
            0 => String::new(),
            1 => format!("{} / 2 + ", self.tile_n()),
            more => format!("{more} * {} / 2 + ", self.tile_n()),
        };
        ("acc".into(), before)
    }

    /// Elements of a tile on the instruction's N side.
    pub(super) fn tile_n(&self) -> String {
        if self.tiling().swap_ab() {
            self.pipeline.tile_rows(self.tiling)
        } else {
            self.pipeline.tile_columns(self.tiling)
        }
    }

    /// Elements of a subtile on the instruction's N side.
    pub(super) fn subtile_n(&self) -> &'static str {
        if self.tiling().swap_ab() {
            "SUBTILE_M"
        } else {
            "SUBTILE_N"
        }
    }

    /// Registers for this thread's elements of a subtile, and what they begin as.
    pub(super) fn subtile_array(&mut self, name: &str, begins: &str) {
        let (blocks, subtile) = (self.of_blocks(), self.subtile_n());
        self.line(format!("float {name}{blocks}[{subtile} / 2]{begins};"));
    }

    /// Bytes from a stored tile's subtile to the next one in a stage.
    pub(super) fn subtile_bytes(&self) -> String {
        let own = self.tiling().subtile_bytes();
        let mut all = self.pipeline.cta.tilings().iter();
        if all.all(|other| other.subtile_bytes() == own) {
            return "SUBTILE_BYTES".into();
        }
        let (rows, widest) = (self.pipeline.tile_rows(self.tiling), self.tiling().widest());
        format!("({rows} * SUBTILE_N * {widest})")
    }

    pub(super) fn of_blocks(&self) -> String {
        self.blocks().map_or(String::new(), |it| format!("[{it}]"))
    }

    /// Reads what a subtile needs of a vector, from the subtile's first column on.
    pub(super) fn vector(&mut self, name: &str, from: &str, columns: &str) {
        if !self.tiling().swap_ab() {
            self.line(format!("float {name}[SUBTILE_N / 4];"));
            self.line(format!(
                "vector_read<SUBTILE_N>({name}, {from}, {columns}, lane);"
            ));
            return;
        }
        self.vector_on_m(name, &format!("{from} + {}", self.first_on_m()), columns);
    }

    /// Reads what a subtile needs of a scale of rows, from the subtile's first row on.
    pub(super) fn rows(&mut self, name: &str, (scale, row): (&str, &str), rows: &str) {
        if !self.tiling().swap_ab() {
            return self.vector_on_m(
                name,
                &format!("{scale}, {row} + {}", self.first_on_m()),
                rows,
            );
        }
        // A shard may begin at an odd row: no pairs.
        self.line(format!("float {name}[SUBTILE_M / 4];"));
        self.line("#pragma unroll");
        self.line(format!(
            "for (u32 i = 0; i < SUBTILE_M / 4; ++i) {name}[i] = vector_element({scale}, {row} + i / 2 * 8 + 2 * (lane % 4) + i % 2, {rows});"
        ));
    }

    /// Reads what runs along the instruction's M side.
    fn vector_on_m(&mut self, name: &str, from: &str, most: &str) {
        let read = |array: &str, block: &str| {
            format!("vector_read_transposed({array}, {from}{block}, {most}, lane);")
        };
        self.line(format!("float {name}{}[2];", self.of_blocks()));
        let Some(blocks) = self.blocks() else {
            return self.line(read(name, ""));
        };
        self.line("#pragma unroll");
        let read = read(&format!("{name}[block]"), " + block * 64");
        self.line(format!(
            "for (u32 block = 0; block < {blocks}; ++block) {read}"
        ));
    }

    /// Makes an amax as large as the elements of a subtile that exist: those before the ends of its rows and columns.
    pub(super) fn take_amax(
        &mut self,
        amax: &str,
        (array, at): (&str, &str),
        rows: [String; 2],
        columns: [String; 2],
    ) {
        let (subtile, first) = (self.subtile_n(), self.first_on_m());
        let ([m, ms], [n, ns]) = match self.tiling().swap_ab() {
            true => (columns, rows),
            false => (rows, columns),
        };
        let largest = |block: &str, below: &str| {
            format!(
                "largest = subtile_amax<{subtile}>(largest, {array}{block}{at}, {m} + {first}{below}, {ms}, {n}, {ns}, lane);"
            )
        };
        self.line("{");
        self.depth += 1;
        self.line("float largest = 0.0f;");
        match self.blocks() {
            None => self.line(largest("", "")),
            Some(blocks) => {
                self.line("#pragma unroll");
                let largest = largest("[block]", " + block * 64");
                self.line(format!(
                    "for (u32 block = 0; block < {blocks}; ++block) {largest}"
                ));
            }
        }
        self.line(format!("amax_take({amax}, largest, lane);"));
        self.depth -= 1;
        self.line("}");
    }

    /// A type's name in the text.
    pub(super) fn element(&self, dtype: Dtype) -> String {
        if dtype == self.pipeline.dtype() {
            return "T".into();
        }
        if dtype == Dtype::F32 {
            "float".into()
        } else {
            dtype.to_string()
        }
    }

    /// Applies an epilogue to a subtile's elements.
    pub(super) fn apply(&mut self, index: usize, part: &str) {
        let epilogue = &self.pipeline.epilogues[index];
        if epilogue.sum().is_some() {
            return;
        }
        let name = identifier(&epilogue.name);
        let blocks = self.blocks();
        let block = if blocks.is_some() { "[block]" } else { "" };
        let subtile = self.subtile_n();
        let arguments = epilogue.params.iter().map(|param| match param.from {
            Source::Product(product) => {
                let (acc, before) = self.accumulators(product);
                format!("{acc}{block}[{before}{part} * {subtile} / 2 + i]")
            }
            Source::Subtile | Source::Sum => format!("{}{block}[i]", param.name),
            Source::Broadcast(None) => param.name.clone(),
            Source::Broadcast(Some(side)) => match (side, self.tiling().swap_ab()) {
                (Side::Columns, true) | (Side::Rows, false) => {
                    format!("{}{block}[vector_index_transposed(i)]", param.name)
                }
                (Side::Columns, false) | (Side::Rows, true) => {
                    format!("{}[vector_index(i)]", param.name)
                }
            },
        });
        let arguments = arguments.collect::<Vec<_>>().join(", ");
        self.subtile_array(&results(epilogue), "");
        if let Some(blocks) = blocks {
            self.line("#pragma unroll");
            self.line(format!("for (u32 block = 0; block < {blocks}; ++block)"));
        }
        self.line("#pragma unroll");
        self.line(format!(
            "for (u32 i = 0; i < {subtile} / 2; ++i) {name}s{block}[i] = {name}({arguments});"
        ));
    }
}

/// The registers an epilogue leaves a subtile's elements in.
pub(super) fn results(epilogue: &Epilogue) -> String {
    match epilogue.sum() {
        Some(sum) => sum.name.clone(),
        None => format!("{}s", identifier(&epilogue.name)),
    }
}

fn signature(name: &str, params: &[String]) -> String {
    let list = params.iter().map(|param| format!("float {param}"));
    let list = list.collect::<Vec<_>>().join(", ");
    format!("__device__ __forceinline__ float {name}({list})")
}

/// A function's name; the second of that name is numbered.
fn function_name(functions: &[&ScalarFn], index: usize) -> String {
    let same = |other: &&&ScalarFn| other.name == functions[index].name;
    match functions[..index].iter().filter(same).count() {
        0 => function_identifier(functions[index].name),
        before => format!("{}_{}", functions[index].name, before + 1),
    }
}

fn params(epilogue: &Epilogue) -> Vec<String> {
    let names = epilogue.params.iter().map(|param| identifier(&param.name));
    names.collect()
}

fn distinct(mut names: Vec<String>) -> Vec<String> {
    for index in 0..names.len() {
        while names[..index].contains(&names[index]) {
            names[index].push('_');
        }
    }
    names
}

/// The epilogue's value with its parameters as arguments.
fn named(epilogue: &Epilogue) -> Value {
    epilogue.value.with(&|acc| {
        let mut params = epilogue.params.iter();
        let index = params.position(|param| param.acc == acc).unwrap_or(0);
        Value::Arg(index as u16)
    })
}

/// Prints a value; what it uses more than once gets a name.
struct Printer<'a> {
    params: &'a [String],
    functions: &'a [&'a ScalarFn],
    parts: Vec<&'a Value>,
    /// In how many different places each part stands.
    uses: Vec<u32>,
    names: Vec<Option<String>>,
    lines: Vec<String>,
}

impl<'a> Printer<'a> {
    fn count(&mut self, value: &'a Value) {
        if let Some(known) = self.parts.iter().position(|part| *part == value) {
            self.uses[known] += 1;
            return;
        }
        self.parts.push(value);
        self.uses.push(1);
        self.names.push(None);
        match value {
            Value::Acc(_) | Value::Arg(_) | Value::Const(_) => {}
            Value::Unary(_, a) | Value::Cast(_, a) => self.count(a),
            Value::Binary(_, a, b) => {
                self.count(a);
                self.count(b);
            }
            Value::Select(_, parts) => parts.iter().for_each(|part| self.count(part)),
            Value::Call(_, values) => values.iter().for_each(|value| self.count(value)),
        }
    }

    /// `outer` is how tightly what is around binds: 0 not, 1 sums, 2 products, 3 signs.
    fn text(&mut self, value: &Value, outer: u8, whole: bool) -> String {
        let simple = matches!(value, Value::Acc(_) | Value::Arg(_) | Value::Const(_));
        let known = self.parts.iter().position(|part| *part == value);
        let Some(known) = known.filter(|known| !whole && !simple && self.uses[*known] > 1) else {
            return self.plain(value, outer);
        };
        if let Some(name) = &self.names[known] {
            return name.clone();
        }
        let text = self.plain(value, 0);
        let mut name = format!("v{}", self.lines.len());
        while self.params.contains(&name) {
            name.push('_');
        }
        self.lines.push(format!("const float {name} = {text};"));
        self.names[known] = Some(name.clone());
        name
    }

    fn plain(&mut self, value: &Value, outer: u8) -> String {
        match value {
            // Only arguments are left: see `named`.
            Value::Acc(acc) => format!("acc{}", acc.0),
            Value::Arg(index) => self.params[usize::from(*index)].clone(),
            Value::Const(number) => literal(*number),
            Value::Unary(Unary::Neg, a) => {
                let a = self.text(a, 3, false);
                if a.starts_with('-') {
                    format!("-({a})")
                } else {
                    format!("-{a}")
                }
            }
            Value::Unary(unary, a) => format!("{}({})", name_of(*unary), self.text(a, 0, false)),
            Value::Cast(dtype, a) => {
                let to = if *dtype == Dtype::F32 {
                    "0.0f".into()
                } else {
                    format!("{dtype}()")
                };
                format!("rounded({}, {to})", self.text(a, 0, false))
            }
            Value::Binary(binary, a, b) => {
                let (sign, level) = match binary {
                    Binary::Add => ("+", 1),
                    Binary::Sub => ("-", 1),
                    Binary::Mul => ("*", 2),
                    Binary::Div => ("/", 2),
                    Binary::Min => return self.call("fminf", [&**a, &**b]),
                    Binary::Max => return self.call("fmaxf", [&**a, &**b]),
                };
                let (a, b) = (self.text(a, level, false), self.text(b, level + 1, false));
                bracketed(format!("{a} {sign} {b}"), level < outer)
            }
            Value::Select(compare, parts) => {
                let [a, b, then, otherwise] = &**parts;
                let sign = match compare {
                    Compare::Lt => "<",
                    Compare::Le => "<=",
                    Compare::Eq => "==",
                };
                let (a, b) = (self.text(a, 1, false), self.text(b, 1, false));
                let (then, otherwise) = (self.text(then, 1, false), self.text(otherwise, 1, false));
                bracketed(format!("{a} {sign} {b} ? {then} : {otherwise}"), outer > 0)
            }
            Value::Call(function, values) => {
                let index = self.functions.iter().position(|known| *known == function);
                let name =
                    index.map_or_else(String::new, |index| function_name(self.functions, index));
                self.call(&format!("epilogue::{name}"), values)
            }
        }
    }

    fn call<'v>(&mut self, name: &str, values: impl IntoIterator<Item = &'v Value>) -> String {
        let values: Vec<String> = values
            .into_iter()
            .map(|value| self.text(value, 0, false))
            .collect();
        format!("{name}({})", values.join(", "))
    }
}

fn bracketed(text: String, brackets: bool) -> String {
    if brackets { format!("({text})") } else { text }
}

/// The function of the prelude, or of CUDA's own.
const fn name_of(unary: Unary) -> &'static str {
    match unary {
        Unary::Neg => "-",
        Unary::Abs => "fabsf",
        Unary::Exp => "expf",
        Unary::Ln => "logf",
        Unary::Sqrt => "sqrtf",
        Unary::Tanh => "tanhf",
        Unary::Erf => "erff",
        Unary::Sigmoid => "sigmoid",
        Unary::Gelu => "gelu",
        Unary::GeluTanh => "gelu_tanh",
        Unary::Silu => "silu",
        Unary::Relu => "relu",
    }
}

/// The shortest decimal that reads back as this number.
pub(super) fn literal(number: f32) -> String {
    if number.is_finite() {
        format!("{number:?}f")
    } else {
        format!("__uint_as_float(0x{:08x})", number.to_bits())
    }
}
