"""The reports on checksums of several files, as one report."""

from __future__ import annotations

from ckpt.formats.format import ChecksumReport, Damage

ONE = ChecksumReport(10, (Damage("record a", "0"),), 3, ("b: too many open files",))
TWO = ChecksumReport(200, (Damage("record c"),), 50, ("d: gone",))


def test_a_report_on_several_files_has_all_of_each() -> None:
    assert ChecksumReport.together([ONE, TWO]) == ChecksumReport(
        210, (*ONE.damage, *TWO.damage), 53, (*ONE.unread, *TWO.unread)
    )
    assert ChecksumReport.together([]) == ChecksumReport(0, (), 0)


def test_a_report_about_a_file_names_it_in_each_line() -> None:
    assert ONE.about("x.bin") == ChecksumReport(
        10, (Damage("x.bin: record a", "0"),), 3, ("x.bin: b: too many open files",)
    )
