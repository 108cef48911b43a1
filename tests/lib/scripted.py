"""TorchScript programs for the tests, in every form that torch saves, and as a machine
with GPUs would tag them.
"""

from __future__ import annotations

import base64
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from needs import skip_without
from torch import Tensor, nn

PICKLES = ("data.pkl", "constants.pkl", "bytecode.pkl")
INPUT = torch.arange(4.0)[None]


class Net(nn.Module):
    """A parameter, a buffer, a list of tensors, a device and a text, which share one
    `'cpu'` in the pickle.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(12.0).reshape(3, 4))
        self.register_buffer("scale", torch.ones(4))
        self.device = torch.device("cpu")
        self.name = "cpu"
        self.large = 2**40
        self.more = [torch.ones(2), torch.zeros(3)]

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale) @ self.weight.t() + self.more[1]


class Plain(nn.Module):
    """Without attributes that freezing keeps: all its tensors become constants of the
    code.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * torch.ones(3)


class Away(nn.Module):
    """Its code names devices as constants."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros(3, device=torch.device("cuda:0"))
        z = torch.ones(3, device=torch.device("cuda:0"))
        return y + z + x.cuda() + self.weight.to("cuda:1")


def _saved(module: Any, path: Path, *, lite: bool = False) -> Path:
    skip_without("torchscript")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (module._save_for_lite_interpreter if lite else module.save)(str(path))
    return path


KINDS: dict[str, Callable[[Path], Path]] = {
    "script": lambda path: _saved(torch.jit.script(Net()), path),
    "trace": lambda path: _saved(torch.jit.trace(Plain(), INPUT), path),
    "frozen": lambda path: _saved(
        torch.jit.freeze(torch.jit.script(Plain()).eval()), path
    ),
    "lite": lambda path: _saved(torch.jit.script(Net()), path, lite=True),
    "frozen lite": lambda path: _saved(
        torch.jit.freeze(torch.jit.script(Plain()).eval()), path, lite=True
    ),
}
ONE_DEVICE = [kind for kind in KINDS if "frozen" in kind or kind == "trace"]
"""Programs whose pickles name a device for nothing but storages."""


def away(path: Path, *, lite: bool = False) -> Path:
    """A program whose code names `cuda`, `cuda:0` twice and `cuda:1`."""
    return _saved(torch.jit.script(Away()), path, lite=lite)


def tagged(path: Path, tag: str = "cuda:0", only: tuple[str, ...] = PICKLES) -> Path:
    """A program with another tag in place of each `'cpu'` of its pickles."""
    before = b"X\x03\x00\x00\x00cpu"
    after = b"X" + len(tag).to_bytes(4, "little") + tag.encode()
    with zipfile.ZipFile(path) as archive:
        records = [(row, archive.read(row)) for row in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for row, data in records:
            is_pickle = row.filename.partition("/")[2] in only
            archive.writestr(
                row.filename,
                data.replace(before, after) if is_pickle else data,
                row.compress_type,
            )
    return path


def records(path: Path) -> dict[str, bytes]:
    """The bytes of each record as they lie in the archive, deflated ones too."""
    found = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for row in archive.infolist():
            file.seek(row.header_offset + 26)
            names, extras = (int.from_bytes(file.read(2), "little") for _ in range(2))
            file.seek(names + extras, 1)
            found[row.filename.partition("/")[2]] = file.read(row.compress_size)
    return found


# --- torch 1.0 to 1.2: files that those releases wrote, compressed --------------------


def written_by(torch_version: str) -> bytes:
    """A program as torch 1.0 or 1.2 saved it: `head` and `hf`, below `sub` a strided
    `w` and `n`; 1.2 has attributes.
    """
    skip_without("torchscript")
    return zlib.decompress(base64.b85decode("".join(_OLD[torch_version].split())))


_OLD = {
    "1.0": """
c-q}oJ#W)M7`}echV)Z(Xr&5dPC`l~H;ofoLDWDSK~Pm%Qm7cHN^0UWH6*q<+ilZOi5V6c*%%lRzk#JABZvW&2~|w&h=KQPH}Sb2DJ>JHx;fvy
&-*-neD|IUGi~h%MIs3Oc)GfT0<8-TBAwWytAtvbq33f0=-%EYMGG^XkvqTVAGQL9U4;WP_Ms^^W64m+D0C8LHJ{7wm-Xn)FpIvxqD5>WD<q=|
Q3chYYcf@07AdP@RDiag5f+GU88j}8T=BaZm?<U!WE-@!lGq^Buwsj;B~ei9s!6irqEMErhGS=wFho|h63Kd@-c1abOb5r~ER9r8BP&YG>s2bT
bx~j%5|;BIu@)DBP88&_xguvJ2BXAws4mpQi;^F|LS!ZGdb@Szb!{8m+dkCW0d$`8w#W#Xzh}{Z;orgD6}=@mdw>4j78tR0s7*a+(zVHU^;@IK
d~V`I3(!mZ>?-`5guh89<;C#wg?<?5Zz5%klOpAF5;_k51Tg2&HFTYE{~G@Iwi^b!n{Z#|xKsJu82TsA4}G}axIPTN+<7$w6GKh3jBr}g`CR<y
S~~qKjL-bMV*mk)9Lm=VhB3Yh?38lik;O{erDLyw8aAn68+W}ugfm#eBCg1qK5HmWncz$f!%nQYHx|w;*08&@trFEtdx{cWW+9JB6`-NLi#J7V
%2cip8?w7t&B{5dN+`~#a@isx_Dq{r0G$G29fF~|2GC%zO&vZq-H6rk=2HCzh+)PsZLOkh5D&<vn`{1iy~&0KR_vNdmIC2wP&1J4)hx2tqBtc&
=e#Jh>OKQ*Oaxw8f@$&BpQ~HZDy-vrn!><ks4A34U$tdZO(FFFi3L#d#L+0RZcum>U%evR@&eRBfaP!Anp(i#P{X`>6=K$TC6QSQHIbRID<aJa
Nbv&pA@{8gvrFR#@=Hzlo0z~}P5Q(pr1llTaW;F->A8jRiw6><_Yy2^vbxdz{JZ|44Iy?FW?I-sOucdhzihftxCOqC!oc9M-N%7$`@q1~34?=&
*#HNA--7l#=feqtM^F!!;8QE&PrxuVc!KcI<u)EFg`vTM&qKe4ps6r4Si5=XN;?lthoQmO*ULe__|QhFFU)jwi2m%kwvl>dB=q~O#ry3)y?eZL
xF^lesCVDuj-Bf8FcCN2i~R#Dj|g!
""",
    "1.2": """
c-q}qUu+ab7@z*TmV@%IAP5M@0y2f`wR`;|oRqdFo?#cEATd>F&h70Uw{UlRvpYvyN)uw@12HD(0~q52i6&^&7h`-;4B^2Clot~)KAGqP2~Rxu
;J-w_+1=jF?zO#MK~3CtZ)az|-+aIMX6Cow?y%g@h)_!lLif*~9Yx%+6s<#fjdq^ZOiMTNiFg}&x$+Q$!*X-W3x6IxRSy_;4$s-+3N&Q*m@-tY
6AF>SWFp=_Tdxa0j6%{Sn6xw+>JN!QRZEA`hB>a7Dz>z2IvfnaF%b(L*YcKOwud_QyTur^B)b4a4KtOA<Z^f-9Ac1&RUC_qx3gxk)O=1e4GW)$
j)p@joh)emhmE`z4rP@|qe$HwRXeMvW?Bk*KAF>UhB;|h*xf~WZ%#o`Rh;Y!gR5{z$rdt7zu4~5$Y_enV5UZkW**RXwEtRp^NR-%&j<5Hdlme#
Xsg;-@stzpGucGE)f?{%^%%=-7>_UrLC&R4MwHach+P^eX~gmXSmdCIMRL%geOjjxD`n~h3WKB>L$$+P5&Y0Zd(3WOhdYjnaF4f#cKf5;9wbd8
&ES*j`AJwRBp|m?(kv(B)09AI36>K$!|o4L5~O4)mXG0#%X%3ltyn%;YF|#t3M`L0_kdqX$to;s?Ea*Dijviov|*W)@M|bpi)E9w>&*T!O4ec7
Dz&et<Z&$15`F_E8?k)8)V_(5C$Mw@*q2N;Q?dn17wsz7Dn!XvEWN>736yNZ(q-OiJ0&}?^bT+JBqcksbd9&dl(b{%Bi?EkCA+cov0G)2J4{Ij
mOkNu5lT9-^ckzdBbi4($20p0Pk2^!C`h_I(<{ntlti8B>ZYUzOV@eky_ED}=?>5QDN6QW=`L@zmy#HkzPGE~zMiIJAC`XLf&G;1$I?%{)c_@f
So)c_8loglBW%Ns{_@-AtqlmVbM6h-hBkZTEy+ZLN!$kXuj|)8p<SMdolUfCar*J|Uvsx18n@>ar?sfdD^5<Zm_UVVdLaC-^=rhZUoZLeOY!Mf
&Zl2_pMDuW{VMqMYr?BvOwT;x^;)HPU91$Zw<^W!a;12^S1DfCD#h!AO7Z%zQoKIpt-2@?v2=^Kih`nG=^Ngv2NVTM-||*{Oi}FpK63WfmZOl%
uygJ;yc%`dYgnPw)W?ccvz!II8`ZXcQ|0xTEa<5-SuHqL)U#@m+M7I?HjP|TSAzs$xt<;)br~o$K%u@0GOJrONE$Fa_5jfch(=auf<lu9KY?jH
QU?Q3U{%%?NegQXK>ZRY3fJ@ZU%dj&SLWTxttetg!EtGIb|vDwY6yVS$%O&<8HE2q=J@rEuk2U}6)USa?)5kp6LGQjT+;6!%5Yw_d91s1@6Gkl
u)Ye94iArLBHoT_@xKo|$I$`wEc5yM#@p{NgUV%9eD3x5>`ugc7neuZA?Ed~Z8t}%=kKlP8IRYVM10`kvUfIq7W)eWjK!s+fji(9wNzoz?_trK
i0?%Y;lF$^4#wAarfQFW-=gE+%=s?dy=PP(|8iI`%y$mbjBMnz#a_+!EII&FLcuhs@uHK12r;2o2n#ty&p&Ud#jGa8rUZC0=j<Cxh@F@cY|U{V
oI|FTSD48eZ4#iq#7CG83kAhg;OPpz+gRO-7t?9Y6k=&5YiVJ@3E)8$&>}d_gE17xh3V1K4Ri)AMuF-%{Tx(Kvk1Vl=sKhzrvY0hEh=}Ehoa6p
@3DL2s2^a7hmU_nG9pa-P;(5p_Q7_QIkIe+A20N`=<#OKGXw4dLUWppWoOJp-s})OFHShNqh;f)MQ5y|y!8P+MNe4N42SeQ<?PwTnn85e6n8h~
VYVjKVoEa)J6#qg?H+`3LwUW55f)2#BigZ1^&Bez+c2Eq-bkk*w|1irjCEBj8Hmil)JRb`HS0MOros)ls!-*)Gt$JNBSXgpr>e}l^uS|N@8r&G
Nfe4~?AFnulBY0#syq8Ea5KcZs}W;cq5GkUiHjh{lZyIDRS<I5wV#pLHz%iP&77(PY5|<$M~)ntlTi16KxqDH>v_m&d-RNY7tF{*qMFl#hmZI5
%;~gmVNOS<*^~3eA79?M89<1g!*U%<V@l6X{@dhI<UhDCoPHqxnQes!bj$^E`tJwxpA1%cz&Gkp<##zhoPUdM^T5R>G}~7Oe+T?4%vw(eqX9Jg
tGB-kKL20s>0;{=G|QWhAJ3=ptseZ&Ao9L5_@R8}?S)?TK}A25PoTX}ywnSg`k{Ol?1jGTgLeC&eCq0ju3qMa_V}TE#_5H=?SuCEp?t#Vg>Gu~
Li_wse#b2LdUc`Y{Bl?h1j26X=7tU~6ZKw?H8|Jr*39Iz0Xx0jzTUa7v+J4y4raM+@7Vqgeod;V
""",
}
