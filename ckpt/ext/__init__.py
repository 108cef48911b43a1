"""Extensions: one capability in one folder, with its reader, its work, its report and
its command.
"""
