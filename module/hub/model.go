package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrIncomplete means that the cache has a snapshot of the repository that cannot be loaded. The text names the reason and the
// remedy.
var ErrIncomplete = errors.New("the snapshot in the local Hugging Face cache cannot be loaded")

// Model is a model in a repository of the hub: all of it, or one of its files or folders.
type Model struct {
	Repo
	// File is the path of a file or folder in the repository, with slashes; empty for its top folder.
	File string
}

// ParseModel parses ORG/MODEL[@REVISION][:FILE]. FILE is a file or a folder of the repository. Errors are [ErrName].
func ParseModel(text string) (Model, error) {
	name, file, found := strings.Cut(text, ":")
	repo, err := ParseRepo(name)
	if err != nil {
		return Model{}, err
	}
	if found && (!fs.ValidPath(file) || file == "." || strings.ContainsAny(file, "\\\x00")) {
		return Model{}, fmt.Errorf("%q: %w: behind the colon is the path of a file or folder in the repository", text, ErrName)
	}
	return Model{repo, file}, nil
}

// String returns the text that [ParseModel] parses.
func (m Model) String() string {
	if m.File == "" {
		return m.Repo.String()
	}
	return m.Repo.String() + ":" + m.File
}

// Path returns the file or folder of the model and the commit, in a cache; an empty cache means [CacheDir]. It examines the
// snapshot: a folder contains a model that can be opened, and the files are there. Errors are [ErrNotCached] and
// [ErrIncomplete].
func (m Model) Path(cache string) (path, at string, err error) {
	dir, at, err := m.Snapshot(cache)
	if err != nil {
		return "", "", err
	}
	path = filepath.Join(dir, filepath.FromSlash(m.File))
	if err := m.examine(dir, path); err != nil {
		return "", "", err
	}
	return path, at, nil
}

// incomplete returns an error with its remedy.
func (m Model) incomplete(remedy, why string, args ...any) error {
	return fmt.Errorf("%s: %w: %s; %s", m, ErrIncomplete, fmt.Sprintf(why, args...), remedy)
}

// download is the remedy for missing files.
func (m Model) download(file string) string { return "get it with `" + m.Repo.Download(file) + "`" }

func (m Model) examine(dir, path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return m.missing(dir, path)
	case err != nil:
		return fmt.Errorf("%s: %w", m, err)
	case !info.IsDir():
		return nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("%s: %w", m, err)
	}
	return m.examineFolder(path, entries)
}

// missing explains a path that does not exist.
func (m Model) missing(dir, path string) error {
	if _, err := os.Lstat(path); err == nil {
		return m.dangling(path, m.File)
	}
	have, _ := os.ReadDir(filepath.Dir(path)) // best effort: it completes the error
	var names []string
	for _, entry := range have {
		if !strings.HasPrefix(entry.Name(), ".") {
			names = append(names, entry.Name())
		}
	}
	found := "nothing"
	if len(names) > 0 {
		found = list(names)
	}
	where := "the snapshot has"
	if parent := filepath.Dir(path); parent != dir {
		where = "its folder has"
	}
	return m.incomplete(m.download(m.File), "there is no %s: %s %s", m.File, where, found)
}

// dangling explains a link to a blob that does not exist.
func (m Model) dangling(path, file string) error {
	if partial(path) {
		return m.incomplete("let the download end, or "+m.download(file), "the download of %s has not finished", file)
	}
	return m.incomplete(m.download(file), "%s is a link to a blob that was deleted", file)
}

// partial reports whether the blob that a link names is being downloaded.
func partial(path string) bool {
	target, err := os.Readlink(path)
	if err != nil {
		return false
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(path), target)
	}
	found, _ := filepath.Glob(globEscape(target) + "*.incomplete")
	return len(found) > 0
}

// globEscape returns a pattern that matches the path alone.
func globEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// foreign describes weights that this project does not read, by the end of their names.
var foreign = []struct{ suffix, format, remedy string }{
	{".bin", "PyTorch checkpoints (.bin)", "name a revision with safetensors, such as refs/pr/1 of many repositories, or convert them with save_pretrained of transformers"},
	{".pth", "PyTorch checkpoints (.pth)", "convert them with safetensors.torch.save_file"},
	{".pt", "PyTorch checkpoints (.pt)", "convert them with safetensors.torch.save_file"},
	{".ckpt", "PyTorch checkpoints (.ckpt)", "convert them with safetensors.torch.save_file"},
	{".msgpack", "Flax weights (.msgpack)", "convert them with save_pretrained of transformers"},
	{".h5", "Keras weights (.h5)", "convert them with safetensors.numpy.save_file"},
	{".onnx", "ONNX models", "convert their initializers with safetensors.numpy.save_file"},
	{".npz", "NumPy arrays (.npz)", "convert them with safetensors.numpy.save_file"},
}

// readable are the ends of names of models that this project reads.
var readable = []string{".safetensors", ".safetensors.index.json", ".gguf"}

func weights(name string) bool {
	return slices.ContainsFunc(readable, func(suffix string) bool { return strings.HasSuffix(name, suffix) })
}

// examineFolder explains a folder without a model that can be opened.
func (m Model) examineFolder(path string, entries []fs.DirEntry) error {
	var folders []string
	loadable := false
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() {
			if !strings.HasPrefix(name, ".") && holdsWeights(filepath.Join(path, name)) {
				folders = append(folders, name)
			}
			continue
		}
		if !weights(name) {
			continue
		}
		loadable = true
		if _, err := os.Stat(filepath.Join(path, name)); errors.Is(err, fs.ErrNotExist) {
			return m.dangling(filepath.Join(path, name), join(m.File, name))
		}
	}
	if loadable {
		return nil
	}
	if len(folders) > 0 {
		return m.incomplete("name one, such as "+Model{m.Repo, join(m.File, folders[0])}.String(), "its models are in the folders %s", list(folders))
	}
	for _, f := range foreign {
		for _, entry := range entries {
			if strings.HasSuffix(entry.Name(), f.suffix) {
				return m.incomplete(f.remedy, "it has only %s, such as %s", f.format, entry.Name())
			}
		}
	}
	if unfinished, _ := filepath.Glob(filepath.Join(globEscape(m.blobs(path)), "*.incomplete")); len(unfinished) > 0 {
		return m.incomplete("let the download end, or "+m.download(m.File), "the download has not finished")
	}
	return m.incomplete(m.download(m.File), "it has no weights, neither safetensors nor GGUF")
}

// blobs returns the folder of the blobs of a folder in a snapshot.
func (m Model) blobs(path string) string {
	snapshot := strings.TrimSuffix(filepath.ToSlash(path), m.File)
	return filepath.Join(filepath.FromSlash(snapshot), "..", "..", "blobs")
}

// holdsWeights reports whether a folder contains a model, or a folder that does.
func holdsWeights(path string) bool {
	found := false
	_ = filepath.WalkDir(path, func(_ string, entry fs.DirEntry, err error) error { // best effort: it completes an error
		if err == nil && !entry.IsDir() && weights(entry.Name()) {
			found = true
			return fs.SkipAll
		}
		return nil
	})
	return found
}

func join(folder, name string) string {
	if folder == "" {
		return name
	}
	return folder + "/" + name
}

// listed is the maximum number of names in an error.
const listed = 8

func list(names []string) string {
	if len(names) > listed {
		return strings.Join(names[:listed], ", ") + fmt.Sprintf(" and %d more", len(names)-listed)
	}
	return strings.Join(names, ", ")
}
