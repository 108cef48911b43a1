"""What several formats share: archives and their directories, pickles, storages, names of files, and what writers need."""
