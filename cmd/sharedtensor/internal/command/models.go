package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/module/hub"
)

// modelArg is one NAME=PATH of the command line.
type modelArg struct {
	name, path string
	load       loadFlags
}

// loadFlags holds the flags about reading files.
type loadFlags struct {
	pythonTies bool // see pythonTiesFlag
	fileLayout bool // see module.LoadOptions
}

func (o *loadFlags) add(c *cobra.Command) {
	pythonTiesFlag(c, &o.pythonTies)
	c.Flags().BoolVar(&o.fileLayout, "file-layout", false, "begin the memory with the file's header, so that other safetensors readers can open its descriptor")
}

// pythonTiesFlag adds the flag for reading files of Python's save_model.
func pythonTiesFlag(c *cobra.Command, value *bool) {
	c.Flags().BoolVar(value, "python-ties", false, "tie names that the metadata maps to a tensor, as in files of Python's save_model")
}

// hubScheme begins the PATH of a model in the local cache of the Hugging Face hub.
const hubScheme = "hf:"

// hubRepo returns the hub's repository that the path names, if any.
func (m modelArg) hubRepo() (repo hub.Repo, named bool, err error) {
	text, named := strings.CutPrefix(m.path, hubScheme)
	if !named {
		return repo, false, nil
	}
	repo, err = hub.ParseRepo(strings.TrimPrefix(text, "//"))
	return repo, true, err
}

// file returns the path to load. For a model of the hub it is that of the newest snapshot.
func (m modelArg) file() (string, error) {
	repo, named, err := m.hubRepo()
	if err != nil || !named {
		return m.path, err
	}
	dir, _, err := repo.Snapshot("")
	return dir, err
}

// source returns the origin of the model, as an absolute path if it is a file.
func (m modelArg) source() string {
	if strings.HasPrefix(m.path, hubScheme) {
		return m.path
	}
	if path, err := filepath.Abs(m.path); err == nil {
		return path
	}
	return m.path
}

// parseModels parses arguments of the form NAME=PATH. Names must be unique.
func parseModels(c *cobra.Command, words []string, load loadFlags) ([]modelArg, error) {
	models := make([]modelArg, 0, len(words))
	seen := map[string]bool{}
	for _, word := range words {
		name, path, found := strings.Cut(word, "=")
		switch {
		case !found:
			return nil, cli.Usagef(c, "%q is not NAME=PATH: use for example %s=%s", word, suggestName(word), word)
		case path == "":
			return nil, cli.Usagef(c, "%q has no path after the =", word)
		case seen[name]:
			return nil, cli.Usagef(c, "the name %q is given twice", name)
		}
		if err := catalog.CheckName(name); err != nil {
			return nil, cli.UsageError(c, fmt.Errorf("%q: %w", word, err))
		}
		seen[name] = true
		m := modelArg{name, path, load}
		if _, _, err := m.hubRepo(); err != nil {
			return nil, cli.UsageError(c, fmt.Errorf("%q: %w", word, err))
		}
		models = append(models, m)
	}
	return models, nil
}

// suggestName derives a name from a path.
func suggestName(path string) string {
	name := filepath.Base(path)
	name = strings.TrimSuffix(name, ".json")
	name = strings.TrimSuffix(name, ".index")
	name = strings.TrimSuffix(strings.TrimSuffix(name, ".safetensors"), ".gguf")
	if catalog.CheckName(name) != nil || name == "." || name == "/" {
		return "NAME"
	}
	return name
}

// completeModels completes the PATH of NAME=PATH as a file.
func completeModels(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// checkModels reads and validates the headers of all files, so that an error in the last file is found before the first
// one is loaded.
func checkModels(models []modelArg) error {
	var errs []error
	for _, m := range models {
		path, err := m.file()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		model, err := module.OpenModel(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, model.Close())
	}
	return errors.Join(errs...)
}

// loadModel loads a model onto the device, seals it, and shows the progress. The caller owns the state dict.
func loadModel(ctx context.Context, dev driver.Device, m modelArg, stderr io.Writer, also func(done, total int64)) (*module.StateDict, error) {
	path, err := m.file()
	if err != nil {
		return nil, err
	}
	meter := term.NewMeter(stderr, "loading", "loaded", m.name)
	sd, err := module.Load(ctx, dev, path, module.LoadOptions{PythonTies: m.load.pythonTies, FileLayout: m.load.fileLayout, Progress: func(done, total int64) {
		meter.Update(done, total)
		if also != nil {
			also(done, total)
		}
	}})
	if err == nil {
		err = seal(sd)
	}
	meter.End(err)
	if err != nil && sd != nil {
		return nil, errors.Join(err, sd.Close())
	}
	return sd, err
}

// seal makes the memory of a model read-only for all processes, including this one, so that published bytes cannot
// change. Devices without seals are unaffected.
func seal(sd *module.StateDict) error {
	for _, s := range sd.Storages() {
		if err := s.Seal(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	return nil
}
