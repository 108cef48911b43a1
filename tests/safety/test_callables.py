"""Callables that scanners of pickles were bypassed with, in every container and
protocol: each file is named with its call.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path

import opcodes as op
import oracle
import pytest
from opcodes import glob, legacy, pickled, torch_zip, value
from paths import IS_THOROUGH

from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.ls.ls import RUNS_CODE, ls
from ckpt.evidence.survey import Survey
from ckpt.formats import open

pytestmark = oracle.QUIET

CALLABLES = """
builtins.eval builtins.exec builtins.compile builtins.open builtins.getattr builtins.__import__ builtins.breakpoint builtins.globals
builtins.vars builtins.delattr builtins.setattr builtins.input builtins.map builtins.filter builtins.memoryview __builtin__.eval
__builtin__.execfile __builtin__.apply __builtin__.file
os.system os.popen os.execv os.spawnv os.remove os.rename os.putenv os.kill posix.system nt.system posix.fork_exec
subprocess.Popen subprocess.call subprocess.run subprocess.check_output subprocess.getoutput commands.getoutput popen2.popen2
runpy._run_code runpy.run_path runpy.run_module runpy._run_module_as_main
ctypes.CDLL ctypes.PyDLL ctypes.cdll.LoadLibrary _ctypes.dlopen ctypes.util.find_library
pip.main pip._internal.main pip._internal.cli.main.main pip._vendor.distlib.scripts.ScriptMaker setuptools._distutils.file_util.write_file
torch.load torch.hub.load torch.hub.load_state_dict_from_url torch.hub._load_local torch.jit.load torch.jit.unsupported_tensor_ops.execWrapper
torch.ops.load_library torch.package.PackageImporter torch.utils.cpp_extension.load torch.utils.cpp_extension.load_inline
torch.utils.collect_env.run torch.utils.bottleneck.__main__.run_cprofile torch.utils._config_module.ConfigModule.load_config
torch.utils.data.datapipes.utils.decoder.basichandlers torch.serialization.load torch.fx.graph_module.reduce_graph_module
torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_guards_expression torch._dynamo.guards.GuardBuilder.get torch._inductor.codecache.compile_file
torch.distributed.rpc.api.rpc_sync torch.multiprocessing.spawn torch.from_file torch.storage.UntypedStorage.from_file torch.export.load
torch.onnx.load torch.profiler._utils.compute_self_time torch.cuda._compile_kernel torch.testing._internal.common_utils.shell
numpy.load numpy.memmap numpy.save numpy.fromfile numpy.loadtxt numpy.lib.npyio.load numpy.f2py.crackfortran.getlincoef
numpy.f2py.crackfortran._eval_length numpy.f2py.compile numpy.testing._private.utils.runstring numpy.distutils.exec_command.exec_command
joblib.load joblib.numpy_pickle.load dill.loads dill._dill._create_function cloudpickle.loads cloudpickle.cloudpickle._make_function
pickle.loads pickle.load _pickle.loads marshal.loads shelve.open copyreg.add_extension copyreg.pickle
shutil.rmtree shutil.copyfile shutil.move shutil.unpack_archive tempfile.NamedTemporaryFile pathlib.Path.write_text pathlib.Path.unlink
webbrowser.open antigravity.geohash socket.create_connection socket.socket ssl.get_server_certificate smtplib.SMTP ftplib.FTP telnetlib.Telnet
urllib.request.urlopen urllib.request.urlretrieve http.client.HTTPSConnection xmlrpc.client.ServerProxy requests.get aiohttp.ClientSession
importlib.import_module importlib.reload importlib.machinery.SourceFileLoader imp.load_source pkgutil.resolve_name zipimport.zipimporter
operator.attrgetter operator.methodcaller functools.partial functools.reduce functools.partialmethod types.FunctionType types.CodeType types.MethodType
code.interact code.InteractiveInterpreter.runcode codeop.compile_command cProfile.runctx cProfile.run profile.Profile.run profile.run
pdb.run pdb.Pdb.run bdb.Bdb.run bdb.Bdb.runeval trace.Trace.run timeit.timeit timeit.main doctest.debug_script doctest.testfile
ensurepip._run_pip venv.create idlelib.pyshell.ModifiedInterpreter.runcode idlelib.run.Executive.runcode idlelib.autocomplete.AutoComplete.get_entity
lib2to3.pgen2.grammar.Grammar.loads lib2to3.pgen2.pgen.ParserGenerator.make_label logging.config.dictConfig logging.FileHandler
pydoc.pipepager pydoc.locate pydoc.tempfilepager asyncio.unix_events._UnixSubprocessTransport._start asyncio.create_subprocess_shell
multiprocessing.util.spawnv_passfds multiprocessing.Process distutils.file_util.write_file distutils.spawn.spawn test.support.script_helper.assert_python_ok
uuid._get_command_stdout platform.popen pty.spawn signal.signal atexit.register threading.Timer sched.scheduler sys.exit sys.settrace sys.setprofile
io.open io.FileIO io.open_code codecs.open gzip.open bz2.open lzma.open zipfile.ZipFile tarfile.open fileinput.input linecache.getlines
sqlite3.connect dbm.open csv.reader mailbox.mbox netrc.netrc readline.read_history_file tkinter.Tk turtle.mainloop unittest.main
"""

CONTAINERS: dict[str, Callable[[bytes], bytes]] = {
    "x.pkl": bytes,
    "x.bin": bytes,
    "x.pt": bytes,
    "x.joblib": zlib.compress,
    "x.pkl.gz": gzip.compress,
    "x.pkl.bz2": bz2.compress,
    "x.pkl.xz": lzma.compress,
}


def program(module: str, name: str, protocol: int) -> bytes:
    """A call of a name with one text, as a protocol writes it."""
    if protocol < 2:
        argument = b"(" + op.line("V", "x y") + b"tR"
        return glob(module, name) + argument
    if protocol < 4:
        return glob(module, name) + value(("x y",)) + op.reduce()
    return (
        op.stack_global(module, name) + op.short_text("x y") + op.tuple1() + op.reduce()
    )


def files(module: str, name: str, protocol: int) -> dict[str, bytes]:
    """The same call in every container, by the name of its file."""
    called = program(module, name, protocol)
    bare = pickled(called, protocol=protocol if protocol > 1 else None)
    made = {file: pack(bare) for file, pack in CONTAINERS.items()}
    state = pickled({"w.weight": op.tensor(), "x": called}, protocol=max(protocol, 2))
    made["zip.pt"] = torch_zip(state)
    made["legacy.pt"] = legacy(state)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("protocol", range(6))
def test_each_file_is_named_with_its_call(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    unseen: list[tuple[str, str, str, str]] = []
    for number, qualified in enumerate(CALLABLES.split()):
        if not IS_THOROUGH and number % 6 != protocol:
            continue
        module, _, name = qualified.rpartition(".")
        for file, data in files(module, name, protocol).items():
            Path(file).write_bytes(data)
            with open(file) as checkpoint:
                survey = Survey(checkpoint)
                first = inspect(survey).findings[0]
                loads = ls(survey).loads
                shown = inspect(survey).load.expression
            if (
                first.code != "called-on-load"
                or first.level != "error"
                or ("DANGER" in first.message) != (loads == RUNS_CODE)
                or module.partition(".")[0] not in first.message
                or shown is not None
                or (
                    loads != RUNS_CODE
                    and loads != "not by torch"
                    and not loads.startswith("needs ")
                )
            ):
                unseen.append((qualified, file, loads, first.message))
    assert unseen == []
