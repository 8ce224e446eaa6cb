#!/usr/bin/env python3
"""Compile the kernels of kernels_generated with NVRTC (no GPU needed) and check what ptxas made of them.

usage: compile_kernels.py CUDA [file.cu ...]    CUDA holds lib/ and bin/ of the NVRTC and nvdisasm packages
Prints one line a kernel; fails on a performance warning, a spill, a stack, a loop around an elected TMA instruction, or
an instruction count other than kernels_generated/expected.json has.
"""
import ctypes, glob, json, os, re, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ARCH = {"sm90": "sm_90a"}


def prelude():
    module = open(f"{ROOT}/codegen/src/cuda/mod.rs").read()
    files = re.findall(r'include_str!\("(prelude/\w+\.cuh)"\)', module)
    return "\n".join(open(f"{ROOT}/codegen/src/cuda/{file}").read() for file in files)


def compile(lib, text, name, arch):
    program = ctypes.c_void_p()
    headers = (ctypes.c_char_p * 1)(prelude().encode())
    names = (ctypes.c_char_p * 1)(b"prelude.cuh")
    assert lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 1, headers, names) == 0
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--prec-div=false", "--prec-sqrt=false", "--ptxas-options=-v", "--ptxas-options=--warn-on-spills"]
    array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    result = lib.nvrtcCompileProgram(program, len(options), array)
    size = ctypes.c_size_t()
    lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetProgramLog(program, log)
    if result != 0:
        sys.exit(f"{name}:\n{log.value.decode()}")
    lib.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetCUBIN(program, cubin)
    return cubin.raw, log.value.decode()


def check(name, log, sass, expected):
    ops = [re.sub(r"^\s*/\*[0-9a-f]+\*/\s*", "", line) for line in sass.splitlines() if re.search(r"/\*[0-9a-f]{4,}\*/", line)]
    count = lambda pattern: sum(1 for op in ops if re.search(pattern, op))
    problems = [line for line in log.splitlines() if re.search(r"Potential Performance Loss|C75\d\d", line)]
    spill = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if not spill or any(int(value) for value in spill.groups()):
        problems.append(f"stack or spills: {spill and spill.group(0)}")
    for pattern in [r"\b(LDL|STL)\b", r"BRA\.U\.ANY"]:
        if count(pattern):
            problems.append(f"{count(pattern)} {pattern}")
    mma = [at for at, op in enumerate(ops) if "HGMMA" in op]
    between = sum("R2UR" in op for a, b in zip(mma, mma[1:]) if b - a < 12 for op in ops[a:b])
    if between:
        problems.append(f"{between} R2UR between HGMMAs")
    for what, (step, least) in expected.items():
        seen = count(rf"\b{what}\b")
        if seen < least or seen % step:
            problems.append(f"{seen} {what}, expected a multiple of {step}, at least {least}")
    seen = {what: count(rf"\b{what}\b") for what in ["HGMMA", "UTMALDG", "UTMASTG", "STSM", "LDSM", "USETMAXREG", "MEMBAR"]}
    print(f"{name:40s} {len(ops):5d} instructions  " + "  ".join(f"{k} {v}" for k, v in seen.items()))
    for problem in problems:
        print(f"    FAIL {problem}")
    return not problems


def main():
    cuda, files = sys.argv[1], sys.argv[2:] or sorted(glob.glob(f"{ROOT}/kernels_generated/*/*.cu"))
    ctypes.CDLL(f"{cuda}/lib/libnvrtc-builtins.so.13.0", mode=ctypes.RTLD_GLOBAL)
    lib = ctypes.CDLL(f"{cuda}/lib/libnvrtc.so.13", mode=ctypes.RTLD_GLOBAL)
    expected = json.load(open(f"{ROOT}/kernels_generated/expected.json"))
    ok = bool(files)
    for file in files:
        name = os.path.relpath(file, f"{ROOT}/kernels_generated")
        cubin, log = compile(lib, open(file).read(), os.path.basename(file), ARCH[name.split("/")[0]])
        with tempfile.NamedTemporaryFile(suffix=".cubin") as out:
            out.write(cubin)
            out.flush()
            sass = subprocess.run([f"{cuda}/bin/nvdisasm", "-c", out.name], capture_output=True, text=True, check=True).stdout
        ok &= check(name, log, sass, expected.get(name, {}))
    sys.exit(not ok)


main()
