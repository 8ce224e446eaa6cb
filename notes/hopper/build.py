#!/usr/bin/env python3
"""Compile the prototype kernels with NVRTC (no GPU) and gate the SASS. Writes build/*.cubin and build/manifest.txt.

usage: build.py [name ...]      names from VARIANTS; none = all
"""
import ctypes, os, re, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
CUDA = os.path.join(HERE, "../../.cuda/nvidia/cu13")
ARCH = "sm_90a"
PRELUDE = ["types", "warps", "watch", "mbarrier", "tma", "counters", "wgmma", "epilogue"]

# name -> (file, {constant: value}); the constants replace the ones in the file
VARIANTS = {}
def variant(name, file, **constants):
    VARIANTS[name] = (file, constants)

variant("gemm_n256_3s4p", "gemm.cu")
variant("gemm_n256_4s2p", "gemm.cu", STAGES=4, PANELS=2)
variant("gemm_n224", "gemm.cu", TILE_N=224, STAGES=4, PANEL_N=32, PANELS=6)
variant("gemm_n192", "gemm.cu", TILE_N=192, STAGES=4, PANELS=3)
variant("gemm_n160", "gemm.cu", TILE_N=160, STAGES=5, PANEL_N=32, PANELS=5)
variant("gemm_n128", "gemm.cu", TILE_N=128, STAGES=6, PANELS=2)
for name in list(VARIANTS):
    variant(name + "_c2", "gemm_cluster.cu", **VARIANTS[name][1])
variant("gemm_f16", "gemm.cu", T="f16", STAGES=4, PANELS=2)
variant("pp_n96", "gemm_pp.cu", TILE_N=96, STAGES=6, PANEL_N=32)
variant("pp_n112", "gemm_pp.cu", TILE_N=112, STAGES=7, PANEL_N=16, PANELS=2)
variant("pp_n128", "gemm_pp.cu", TILE_N=128, STAGES=6, PANEL_N=32, PANELS=2)
variant("pp_n144", "gemm_pp.cu", TILE_N=144, STAGES=6, PANEL_N=16, PANELS=2)
variant("pp_n160", "gemm_pp.cu")
variant("pp_n176", "gemm_pp.cu", TILE_N=176, STAGES=5, PANEL_N=16, PANELS=2, GIVE=24, TAKE=240)
variant("pp_f16", "gemm_pp.cu", T="f16")
variant("ag_n256", "ag_gemm.cu")
variant("ag_n256_c4", "ag_gemm.cu", COMM_CTAS=4)
variant("ag_n256_c2", "ag_gemm.cu", COMM_CTAS=2)
variant("ag_n224", "ag_gemm.cu", TILE_N=224, STAGES=4, PANEL_N=32, PANELS=6)
variant("ag_n128", "ag_gemm.cu", TILE_N=128, STAGES=6, PANELS=2)
variant("ag_f16", "ag_gemm.cu", T="f16")
variant("rs_n256", "gemm_rs.cu")
variant("rs_n128", "gemm_rs.cu", TILE_N=128, STAGES=6, PANELS=2)
variant("rs_f16", "gemm_rs.cu", T="f16")
variant("rspp_n128", "gemm_rs_pp.cu")
variant("rspp_n160", "gemm_rs_pp.cu", TILE_N=160, PANELS=1, CARRIES=1)

def source(file, constants):
    text = "".join(open(f"{HERE}/prelude/{p}.cuh").read() + "\n" for p in PRELUDE)
    body = open(f"{HERE}/{file}").read()
    for name, value in constants.items():
        pattern, text_of = {
            "T": (r"typedef \w+ T;", f"typedef {value} T;"),
            "GIVE": (r"registers_give<\d+>", f"registers_give<{value}>"),
            "TAKE": (r"registers_take<\d+>", f"registers_take<{value}>"),
        }.get(name, (rf"\b{name} = \d+", f"{name} = {value}"))
        body, count = re.subn(pattern, text_of, body, count=1)
        assert count == 1, (file, name)
    return text + body

def nvrtc():
    ctypes.CDLL(f"{CUDA}/lib/libnvrtc-builtins.so.13.0", mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(f"{CUDA}/lib/libnvrtc.so.13", mode=ctypes.RTLD_GLOBAL)

def compile(lib, text, name):
    program = ctypes.c_void_p()
    assert lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), f"{name}.cu".encode(), 0, None, None) == 0
    options = [f"--gpu-architecture={ARCH}", "--std=c++17", "--ptxas-options=-v", "--ptxas-options=--warn-on-spills", "--generate-line-info"]
    array = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
    result = lib.nvrtcCompileProgram(program, len(options), array)
    size = ctypes.c_size_t()
    lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetProgramLog(program, log)
    log = log.value.decode()
    if result != 0:
        sys.exit(f"{name}:\n{log}")
    lib.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetCUBIN(program, cubin)
    return cubin.raw, log

def gate(name, cubin_path, log, sass):
    problems = []
    if re.search(r"Potential Performance Loss|C75\d\d", log):
        problems.append("performance warning in the log: " + "; ".join(l for l in log.splitlines() if "C75" in l or "Potential" in l)[:600])
    spill = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if not spill or any(int(v) for v in spill.groups()):
        problems.append(f"stack or spills: {spill and spill.group(0)}")
    lines = [l for l in sass.splitlines() if re.search(r"/\*[0-9a-f]{4,}\*/", l)]
    ops = [re.sub(r"^\s*/\*[0-9a-f]+\*/\s*", "", l) for l in lines]
    count = lambda pattern: sum(1 for o in ops if re.search(pattern, o))
    if count(r"\b(LDL|STL)\b"): problems.append(f"{count(r'(LDL|STL)')} LDL/STL")
    if count(r"BRA\.U\.ANY"): problems.append(f"{count('BRA.U.ANY')} BRA.U.ANY (elect loop)")
    mma = [i for i, o in enumerate(ops) if "HGMMA" in o]
    runs, r2ur = 0, 0
    for a, b in zip(mma, mma[1:]):
        if b - a < 12: r2ur += sum("R2UR" in o for o in ops[a:b])
    if r2ur: problems.append(f"{r2ur} R2UR between HGMMAs")
    registers = re.search(r"Used (\d+) registers", log).group(1)
    facts = dict(instructions=len(ops), registers=registers, HGMMA=len(mma), UTMALDG=count("UTMALDG"), UTMASTG=count("UTMASTG"), STSM=count("STSM"),
                 LDSM=count("LDSM"), R2UR=count("R2UR"), MEMBAR=count("MEMBAR"), CCTL=count("CCTL"), USETMAXREG=count("USETMAXREG"), WARPSYNC=count("WARPSYNC"), BAR=count(r"\bBAR\b"))
    print(f"{name:18s} " + " ".join(f"{k}={v}" for k, v in facts.items()) + ("" if not problems else "\n    FAIL " + "\n    FAIL ".join(problems)))
    return not problems

def main():
    names = sys.argv[1:] or list(VARIANTS)
    lib, ok, manifest = nvrtc(), True, []
    os.makedirs(f"{HERE}/build", exist_ok=True)
    env = dict(os.environ, NVDISASM_PATH=f"{CUDA}/bin/nvdisasm", PATH=f"{CUDA}/bin:" + os.environ["PATH"])
    for name in names:
        text = source(*VARIANTS[name])
        open(f"{HERE}/build/{name}.cu", "w").write(text)
        cubin, log = compile(lib, text, name)
        path = f"{HERE}/build/{name}.cubin"
        open(path, "wb").write(cubin)
        open(f"{HERE}/build/{name}.log", "w").write(log)
        sass = subprocess.run([f"{CUDA}/bin/nvdisasm", "-c", path], capture_output=True, text=True, env=env, check=True).stdout
        open(f"{HERE}/build/{name}.sass", "w").write(sass)
        ok &= gate(name, path, log, sass)
    sys.exit(not ok)

if __name__ == "__main__":
    main()
