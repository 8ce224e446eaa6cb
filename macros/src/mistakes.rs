//! Every mistake that the macros report: what is wrong, and how to correct it.

/// Makes the table: fields are what the texts name.
macro_rules! mistakes {
    ($($name:ident $({ $($field:ident),* })? => $message:literal, $hint:literal;)*) => {
        /// A mistake; its fields are named in its texts.
        pub enum Mistake {
            $($name $({ $($field: String),* })?,)*
        }

        impl Mistake {
            /// Message and hint.
            pub fn text(&self) -> (String, String) {
                match self {
                    $(Mistake::$name $({ $($field),* })? => {
                        (std::fmt::format(format_args!($message)), std::fmt::format(format_args!($hint)))
                    })*
                }
            }
        }
    };
}

mistakes! {
    // The function.
    NotAFunction => "only a function can be a schedule", "write `#[schedule] fn name(x: Gathered<bf16>, …) {{ … }}`";
    AttributeArguments => "this attribute takes no arguments", "leave choices open with `tune(…)`; the launch decides where the schedule runs";
    Qualifier { word } => "a schedule cannot be `{word}`", "remove `{word}`: the function only describes a kernel, it is not the kernel";
    Generics => "a schedule cannot be generic", "name the element type in each parameter; leave numbers open with `tune(…)`";
    ReturnType => "a schedule returns nothing", "remove the return type: outputs are parameters of kind `Out`, `Accumulated`, `ReduceScattered`, `AllReduced`, `AllToAll`, or `Gathered` where a statement stores to it";
    SelfParam => "a schedule has no `self`", "make it a free function of tensors";
    ParamPattern => "a parameter is a plain name", "write `x: Gathered<bf16>`";
    NotATensor { known } => "this is not a tensor", "every parameter is a tensor, such as `Gathered<bf16>`; {known}";
    UnknownKind { found, known } => "no kind of tensor is called `{found}`", "{known}";
    OneElement { kind } => "`{kind}` takes one element type", "write `{kind}<bf16>`";
    Duplicate { name, was } => "`{name}` is already {was} here", "use another name: the generated kernel and its reports use these names";
    Undefined { found, known } => "`{found}` is not known here", "{known}";

    // Roles.
    NoRole => "this schedule does nothing", "put `#[gemm]` or `#[comm(ctas = 4)]` on a loop";
    UnknownRole { found, known } => "no role is called `{found}`", "{known}";
    TwoRoles => "a loop has one role", "give the second role a loop of its own: loops under different roles run at the same time";
    RoleMissing => "no role runs this", "put a role on it: `#[gemm]`, `#[comm(ctas = 4)]`, `#[spare_warps]` or `#[copy_engine]`";
    NestedRole { word } => "`#[{word}]` is inside another role", "put roles on outermost loops only";
    RolePlace { word } => "`#[{word}]` does not apply to this", "put a role on a `for` loop or a block";
    RoleArguments { word } => "`#[{word}]` takes named arguments", "write `#[{word}(name = value)]`";
    CommWithoutCtas => "the number of CTAs is missing", "write `#[comm(ctas = 4)]`, or leave it open: `#[comm(ctas = tune(2, 4, 8))]`";
    RoleName => "this cannot be the name of a role", "write a plain name that is no role's word: `#[comm(name = halo, ctas = 2)]`";
    Attribute => "this attribute has no meaning in a schedule", "only roles and documentation are allowed here";
    IfOutsideRole => "no role runs this `if`", "put it inside a role: every rank has the same roles, and may do different things in them";
    OutsideRole => "no role runs this statement", "put it in a loop or block under a role, such as `#[gemm]`";

    // Constants and named arguments.
    Whole { of, wanted } => "this cannot be {of}", "write {wanted}, or a constant in capitals";
    Constant { of, wanted } => "`{of}` does not take this", "write {wanted}, a constant in capitals, or (where a choice may be left open) `tune(…)` of several";
    OutOfRange { of, found, least, most } => "`{of}` cannot be {found}", "write a number from {least} to {most}";
    EmptyTune => "`tune` has no options", "list the options; the first is the default: `tune(128, 256)`";
    MixedTune => "`tune` mixes numbers and pairs", "give options of one kind";
    TwiceInTune => "`tune` lists this twice", "remove one";
    UnknownArgument { found, of, known } => "`{of}` takes no argument named `{found}`", "{known}";
    TwiceNamed { name } => "`{name}` is given twice", "remove one";
    NameIt { word, name } => "`{word}` takes one argument, named `{name}`", "write `{word}({name} = 128)`";
    Arguments { word, wanted, example } => "`{word}` takes {wanted}", "write `{example}`";
    NoTypes { word } => "`{word}` takes no type", "remove the `::<…>`";

    // `let`.
    LetType => "a `let` in a schedule has no type", "remove it: the right side decides what the name is";
    LetPattern => "a `let` in a schedule binds one name", "write `let name = …;`";
    LetElse => "`let … else` has no meaning in a schedule", "remove the `else`: nothing here can fail to match";
    LetNothing => "this name has no value", "give it a value where it is declared";
    NeedlessMut => "this never changes", "remove `mut`; only an accumulator, `let mut acc = zero();`, needs it";
    NotADeclaration => "this declares nothing", "outside roles, a `let` is a partition (`x.chunks(…)`, `x.panels(…)`, `y.tiles(…)`), `counters(…)`, `symmetric::<T>(…)` or a rank";
    UnknownDeclaration { found, known } => "nothing called `{found}` can be declared", "{known}";
    DeclarationInRole => "this is declared inside a role", "move it to the top of the function: all roles share it";
    ValueOutsideRole => "this is computed outside every role", "move it into a loop under `#[gemm]`";
    OrderInLet => "an order is not a value", "write it in the `for` itself";
    TuneInLet => "a choice is not a value", "write `tune(…)` where the constant stands";
    VectorDivided { name } => "`{name}` is a vector: it has no rows to divide", "a vector lies along the columns of every tile; use it as `.bias({name})`";
    PartDivided { name, part, method } => "`.{part}()` is a shape for `symmetric`, and is not divided", "divide the tensor, `{name}.{method}(…)`; loops visit a rank's shard of it by `.of(rank)`";
    NotDivisible { name, what } => "`{name}` is {what}, not a tensor", "name a tensor here";
    NoTiles { name } => "`{name}` has no tiles whose shape others could have", "name a partition made by `.tiles(…)`, or give rows and columns: `tiles((128, 256))`";
    NotAnAxis { name, what } => "`{name}` is {what}, which is not an axis", "an axis is a partition, `world()` or a number of cells";
    SymmetricElement => "the element type of this scratch is missing", "write `symmetric::<bf16>(…)`";
    SymmetricArguments => "`symmetric` takes a tensor whose shape it has, and its slots", "write `symmetric::<bf16>(y, slots = world())`; `y.shard()` and `y.whole()` choose the rows. Where what is stored in it says its shape: `symmetric::<bf16>()`";

    // Statements.
    Unsupported { what } => "{what} has no meaning in a schedule", "a schedule is made of `for`, `if` on ranks, `let`, stores, copies, waits and signals, so that it can be proved to end";
    EmptyBody => "this is empty", "remove it, or write what it does";
    NoEffect => "this does nothing", "store a value (`y[t] = …`), signal (`c.on(rank)[i].add(1)`) or wait (`c[i].wait()`)";
    AfterEffect { after } => "`.{after}(…)` is a statement and has no value", "end the statement there";
    LoopPattern => "a loop binds one name", "write `for t in …`";
    NotACounter { name, what, known } => "`{name}` is {what}, not a counter", "{known}";
    AssignToCounter { name } => "`{name}` is a counter: it only grows", "signal it: `{name}.on(rank)[i].add(1)`";
    AssignToName { name, what } => "`{name}` is {what}, which cannot be stored to", "the left side is a place such as `y[t]` or `y.on(rank)[t]`; name a value by `let`";
    NotAPlace => "this cannot be stored to", "the left side is a place such as `y[t]`, `y.on(rank)[t]` or `y.everywhere()[t]`";
    NoAccumulator { name } => "`{name}` is not an accumulator", "declare one before: `let mut {name} = zero();`";
    AccumulatorNotMut { name } => "`{name}` is added to but not `mut`", "write `let mut {name} = zero();`";
    AccumulateDots { name } => "only products are added to an accumulator", "write `{name} += dot(x[t], w[t]);`, once for each product; add other values where you store it";
    WaitWithAmount => "`wait` takes no amount: it waits for every signal of its cell", "write `.wait()`; for less than all, `.wait_at_least(2)`";
    RemoteWait => "a rank waits on its own counters only", "remove the rank here; the rank that has the data signals this cell by `.on(rank)`";

    // Loops.
    NotIterable => "a loop cannot visit this", "loop over ranks (`ranks().from_me()`, `ring(1)`) or items (`tiles.of(rank)`)";
    LoopOver { name, what } => "`{name}` is {what}, which a loop cannot visit", "loop over ranks (`ranks().from_me()`) or a partition (`tiles.of(rank)`)";
    UnknownOrder { found, known } => "no order is called `{found}`", "{known}";
    ItemsOfRanks { method } => "`{method}` is for items, and these are ranks", "start from a partition: `tiles.of(rank).{method}(…)`";
    RanksOfItems { method, partition } => "`{method}` orders ranks, and `{partition}` has items", "loop over `ranks().{method}(…)` first, then over `{partition}.of(rank)`";
    OrderedTwice { first, second } => "`{second}` after `{first}`: a loop has one order", "keep one of them";
    OfFirst => "`of` chooses the rank: it comes first, and once", "write `tiles.of(rank).grouped()`";
    OrderAfterCut { order, cut } => "`{order}` after `{cut}`: a loop selects from what it has in order", "put the order first: `tiles.{order}(…).{cut}(…)`";
    CutOfNothing { method } => "`{method}` takes a number of items", "a number, or an expression of ranks, that is not negative; a step is at least 1";
    StepTwice => "`step_by` twice in one selection", "keep one, the product of both: `.step_by(6)` for `.step_by(2).step_by(3)`";
    RingOfZero => "a ring of step 0 goes nowhere", "write `ring(1)` or `ring(-1)`";
    ButLastOfFewer => "`but_last` leaves out fewer ranks than none", "write a number, or an expression of ranks that is not negative: `world() / 2`";
    ButLastOfWhat => "`but_last` shortens an order that starts from me", "put `from_me()`, `after_me()` or `before_me()` before it";
    ButLastOfTable => "`but_last` cannot shorten an order by a function, which visits every rank", "leave ranks out inside the loop: `if r != me() {{ … }}`";
    OrderFunction => "`by` takes a function of `(me, step, world)`", "write `.by(|me, step, world| (me + step) % world)`";
    OrderArguments => "an order is a function of three numbers", "write `|me, step, world| …`";
    OrderCaptures { name } => "`{name}` belongs to the schedule; an order cannot see it", "compute with `me`, `step` and `world` only: the order becomes a table";

    // Ranks.
    NotARank => "this is not a rank", "ranks are computed from `me()`, `world()`, loop variables and whole numbers by `+ - * / % ^`";
    RankNeeded { name, what } => "`{name}` is {what}, but a rank is needed", "ranks are `me()`, `world()` arithmetic, and the variables of loops over ranks";
    OneRankNeeded { found } => "one rank is needed, but `{found}` is several", "loop over `ranks()`, or use `.everywhere()` for all at once";
    UnknownRank { found, known } => "no rank is called `{found}`", "{known}";
    RankOperator => "ranks have no such operator", "use `+ - * / % ^`";
    NotACondition => "this is not a condition on ranks", "compare ranks: `me() == 0`, `peer != me()`, joined by `&&`, `||` and `!`; nothing may depend on data";

    // Places.
    HomeFirst { word } => "`.{word}(…)` comes before the index", "write `x.{word}(…)[c]`";
    PlaneFirst { word } => "`.{word}()` comes before the index, and after the rank", "write `x.{word}()[c]` or `x.on(rank).{word}()[c]`";
    PlaneNotCopied { word } => "`.{word}()` is for copies", "products, sums and stores take a tensor with its scales: leave it out";
    PlanesDiffer { from, to } => "this copy takes {from} and fills {to}", "both sides name the same plane, or neither does: `x.on(peer).scales()[c] = x.scales()[c]`";
    NoPlanes { name, kind } => "`{name}` is {kind}: no scales travel with it", "scales travel with the rows of a `Gathered` input";
    IndexTuple => "a pair of brackets takes one index", "write `c[me()][t]`";
    IndexRange => "a range is not an index", "index by the variable of a loop over a partition";
    OrderAsIndex => "this is an order, but an index is needed", "loop over it, and index by the loop's variable; several slots are `others()` or `everyone()`";
    PartitionAsIndex { partition } => "`{partition}` is all of its items, but one is needed", "loop over it: `for t in {partition}.of(rank)`, and index by `t`";
    NotAnIndex { name, what } => "`{name}` is {what}, not an index", "index by an item, by a rank, or by `t.rows()` or `t.columns()`";
    Input { name, kind } => "`{name}` is {kind}: a schedule cannot write an input", "store to an output parameter or to `symmetric` scratch";
    GatheredAdded { name } => "`{name}` is Gathered: rows hold what one rank has or computes, and nothing is added to it", "add the terms first and store their sum: `{name}[t] = …`; a sum over ranks is `AllReduced`";
    AccumulatedWritten { name } => "`{name}` is Accumulated: this overwrites what it held before the launch", "add to it: `{name}[t] += …`; to overwrite it, make it `Out`";
    AccumulatedRead { name } => "`{name}` is Accumulated: the launch that adds to it cannot read it", "read it in a later launch, or pass what it held before as a `Local` tensor of its own";
    AllToAllAdded { name } => "`{name}` is AllToAll: a slot holds what one rank sends, and nothing is added to it", "add the terms first and store their sum: `{name}.on(rank)[me()][t] = …`; a sum over ranks is `ReduceScattered`";
    NotShared { name, kind } => "`{name}` is {kind}: peers cannot address it", "share data by `Gathered`, `ReduceScattered`, `AllReduced`, `AllToAll` or `symmetric` tensors";
    ReadEverywhere => "every rank's copy is read at once, but not summed", "write `.sum()` after it, or read one rank's by `.on(rank)`";
    VectorIndexed { name } => "`{name}` is a vector and lies along the columns of every tile", "write `{name}` without an index";
    VectorOperand { name } => "`{name}` is a vector, but a tile is needed", "add a vector after the product: `.bias({name})`";
    MissingIndex { name } => "the item of `{name}` is missing", "index it by the variable of a loop over items: `{name}[t]`";
    MissingSlot { name } => "the slot of `{name}` is missing", "name it before the item: `{name}[me()][t]`";
    NoSlots { name } => "`{name}` has no slots", "index it by an item; to reach another rank's memory write `{name}.on(rank)[t]`";
    IndexOrder { name } => "`{name}` is indexed out of order", "write the slot, then the item, each at most once";
    SideOfTensor { var, side } => "`{var}.{side}()` is for counters", "a tensor is indexed by the item itself: `x[{var}]`";
    WriteSeveral { word } => "a store writes one slot, but `{word}()` is several", "name the slot: `[me()]`";
    ReadSeveral { word } => "`{word}()` is several tiles, but one is needed", "add them up: `.sum()`";
    OperandPlace => "this is not data in memory", "name a tensor's item, such as `x[t]`";
    WaitForWhat => "a counter is needed here", "write `.wait(landed)` for the cell at the same index, or `.wait(arrived[t.rows()])`";

    // Counters.
    AxisOfRead { name, wanted, found, offer } => "`{name}` takes {wanted}, but what is read here has {found}", "name the cell: `.wait({offer})`";
    AxisCount { name, declared, wanted, found } => "`{name}` takes {wanted}, but this has {found}", "it is `{declared}`";
    AxisPartition { name, wanted, found, var } => "`{name}` counts items of `{wanted}`, but `{var}` is one of `{found}`", "write `{var}.rows()`, the items of `{wanted}` that hold its rows, or `{var}.columns()`";
    AxisItem { name, wanted } => "`{name}` counts items of `{wanted}` here", "index it by an item of `{wanted}`, or by the rows or columns of another item: `t.rows()`, `t.columns()`";
    AxisRank { name } => "`{name}` counts ranks or numbers here", "index it by a rank, `others()` or `everyone()`";

    // Values.
    NotAValue => "this is not a value", "values are `dot(x[t], w[t])`, stored tiles, numbers such as `0.5`, and arithmetic and methods over them";
    ValueNeeded { name, what } => "`{name}` is {what}, but a value is needed", "values are products, stored tiles, and what is computed from them";
    FloatNeeded { float } => "values are floats", "write `{float}`";
    ValueOperator => "values have no such operator", "use `+ - * /`, or `.map(f)` with an `#[epilogue] fn`";
    ZeroAlone => "`zero()` starts an accumulator", "write `let mut acc = zero();`, then `acc += dot(x[t], w[t]);`";
    UnknownFunction { found, known } => "`{found}` is not a function of values", "{known}";
    MethodNotCalled { method } => "`{method}` is not called", "write `.{method}()`";
    StoreOperator => "a store has no such operator", "write `=`, or `+=` to add to what is there";
    UnknownMethod { found, of, known } => "{of} has no method `{found}`", "{known}";
    WaitAsValue => "a counter has no value", "wait in a statement of its own: `c[i].wait();`, or wait for data where it is read: `z[t].wait(c)`";
    IndexedValue => "a value has no items", "index the tensor it comes from";
    FactorNeeded => "the factor is not a float constant", "write a number such as `0.5` or a constant in capitals; `.mul(z)` multiplies by a value";
    BiasVector => "a bias is a vector along the columns", "make it a parameter of kind `Vector<bf16>`; a whole tile is added by `.residual(z[t])`";
    OfStoredData { word } => "`.{word}` is for stored data, but this is a value", "put it right after a place: `partial[others()][t].{word}(…)`";
    CastElement => "`cast` takes an element type", "write `.cast::<bf16>()`";
    MapFunction => "`map` takes an `#[epilogue] fn`, then its other arguments", "write `.map(leaky)` or `.map(gated, z[t])`";

    // Uses.
    UnusedInput { name } => "`{name}` is never read", "remove the parameter, or call it `_{name}`";
    NothingAdded { name } => "`{name}` is Accumulated, but nothing is added to it", "add to it: `{name}[t] += …`";
    OutputNotWritten { name } => "`{name}` is an output, but never written", "store to it: `{name}[t] = …`";
    UnusedPartition { name } => "`{name}` is a partition that nothing uses", "loop over it or count it, or remove it";
    UnusedName { name } => "`{name}` is never used", "remove it";
    UnusedValue { name } => "`{name}` is computed, but never stored", "store it, or remove it";
    NothingAccumulated { name } => "nothing is added to `{name}`", "add a product: `{name} += dot(x[t], w[t]);`";
    NeverSignalled { name } => "this waits for ever: nothing signals `{name}`", "signal it where the data is ready: `{name}.on(rank)[i].add(1)`";
    NeverWaited { name } => "nobody waits for `{name}`", "wait where the data is read: `{name}[i].wait()`, or remove the counter";
    NeverWritten { name } => "`{name}` is read, but never written", "store to it first: `{name}.on(rank)[me()][t] = …`";
    NeverRead { name } => "`{name}` is written, but never read", "read it, or remove it";

    // `#[epilogue]`.
    EpilogueItem => "only a function can be an epilogue", "write `#[epilogue] fn name(x: f32) -> f32 {{ … }}`";
    EpilogueSignature => "an epilogue takes and returns f32", "write `fn name(x: f32, slope: f32) -> f32`";
    EpilogueQualifier { word } => "an epilogue cannot be `{word}`", "make it a plain function of numbers";
    EpilogueGenerics => "an epilogue cannot be generic", "write it for f32: everything after the product is f32";
    EpilogueNothing => "an epilogue takes at least the value it changes", "write `fn name(x: f32) -> f32`";
    EpilogueStatement => "this has no meaning in an epilogue", "an epilogue is `let` bindings and one final expression";
    EpilogueFinal => "this epilogue has no value", "end it in an expression without `;`";
    EpilogueExpression => "this cannot be computed in an epilogue", "allowed are `+ - * /`, `if … else …` on comparisons, float literals, constants in capitals, other epilogues, and the methods of f32 listed in its documentation";
    EpilogueMethod { found, known } => "an epilogue cannot call `{found}`", "{known}";
    EpilogueElse => "this `if` has no `else`", "an `if` in an epilogue is a value: give it both branches";
    EpilogueCondition => "this is not a comparison of numbers", "compare by `< <= > >= == !=`, joined by `&&`, `||` and `!`";
}
