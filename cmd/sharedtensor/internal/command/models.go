package command

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/module/hub"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// modelArg is one NAME=PATH of the command line.
type modelArg struct {
	name, path string
	load       loadFlags
}

// loadFlags are the flags that decide how the files of a model are loaded.
type loadFlags struct {
	pythonTies bool   // see pythonTiesFlag
	fileLayout bool   // see module.LoadOptions
	dtype      string // name of the type of floating-point numbers, or empty
}

func (o *loadFlags) add(c *cobra.Command) {
	pythonTiesFlag(c, &o.pythonTies)
	c.Flags().BoolVar(&o.fileLayout, "file-layout", false, "begin the memory with the file's header, so that other safetensors readers can open its descriptor")
	c.Flags().StringVar(&o.dtype, "dtype", "", "convert floating-point tensors of 16 bits or more to this type, such as bfloat16")
	_ = c.RegisterFlagCompletionFunc("dtype", cobra.FixedCompletions([]string{"float32", "bfloat16", "float16"}, cobra.ShellCompDirectiveNoFileComp))
}

// check refuses invalid combinations of flags.
func (o *loadFlags) check(c *cobra.Command) error {
	if o.dtype == "" {
		return nil
	}
	if o.fileLayout {
		return cli.Usagef(c, "--dtype and --file-layout exclude each other: the file has other bytes")
	}
	if to, err := tensor.ParseDType(o.dtype); err != nil || !wide(to) {
		return cli.Usagef(c, "--dtype %q: use a type of floating-point numbers, such as float32, bfloat16 or float16", o.dtype)
	}
	return nil
}

// wide reports whether elements are floating-point numbers of at least 16 bits. Smaller ones are meant to be read with
// scales, which are other tensors.
func wide(d tensor.DType) bool { return d.IsFloat() && d.BitSize() >= 16 }

// convert returns the type that a stored tensor gets; nil if all keep theirs.
func (o *loadFlags) convert() func(name string, stored tensor.DType) tensor.DType {
	to, err := tensor.ParseDType(o.dtype)
	if err != nil { // no flag: check refuses other names
		return nil
	}
	return func(_ string, stored tensor.DType) tensor.DType {
		if wide(stored) {
			return to
		}
		return stored
	}
}

// id is the part of the identifier of a model that depends on the flags.
func (o *loadFlags) id() string {
	id := fmt.Sprintf("{pythonTies:%v fileLayout:%v}", o.pythonTies, o.fileLayout)
	if o.dtype != "" {
		id += " dtype=" + strings.TrimPrefix(o.dtype, "torch.")
	}
	return id
}

// pythonTiesFlag adds the flag for reading files of Python's save_model.
func pythonTiesFlag(c *cobra.Command, value *bool) {
	c.Flags().BoolVar(value, "python-ties", false, "tie names that the metadata maps to a tensor, as in files of Python's save_model")
}

// hubScheme begins the PATH of a model in the local cache of the Hugging Face hub.
const hubScheme = "hf:"

// hubModel returns the hub's model that the path names, if any.
func (m modelArg) hubModel() (model hub.Model, named bool, err error) {
	text, named := strings.CutPrefix(m.path, hubScheme)
	if !named {
		return model, false, nil
	}
	model, err = hub.ParseModel(strings.TrimPrefix(text, "//"))
	return model, true, err
}

// open opens the files of the model and returns an identifier of their content: it changes if a file is replaced or written to,
// or if the options change. For a model of the hub it opens those of the newest snapshot. The caller closes the model.
func (m modelArg) open() (model *safetensors.Model, id string, err error) {
	repo, named, err := m.hubModel()
	path := m.path
	if err == nil && named {
		path, _, err = repo.Path("")
	}
	if err != nil {
		return nil, "", err
	}
	if model, err = module.OpenModel(path); err != nil {
		if named && errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w; `%s` completes the snapshot", err, repo.Download(""))
		}
		return nil, "", err
	}
	if m.load.pythonTies {
		model.TieByMetadata()
	}
	if id = model.Fingerprint(); id != "" {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s %s", id, m.load.id()))
		id = hex.EncodeToString(sum[:])
	}
	return model, id, nil
}

// sourceID returns the identifier of the files of the model; it is empty if they cannot be opened.
func (m modelArg) sourceID() string {
	model, id, err := m.open()
	if err != nil {
		return ""
	}
	_ = model.Close() // the files were only read
	return id
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
	if err := load.check(c); err != nil {
		return nil, err
	}
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
		if _, _, err := m.hubModel(); err != nil {
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
		model, _, err := m.open()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, model.Close())
	}
	return errors.Join(errs...)
}

// loadModel loads a model onto the device, seals it, and shows the progress. It also returns the identifier of the files, see
// [modelArg.open]. The caller owns the state dict.
func loadModel(ctx context.Context, dev driver.Device, m modelArg, stderr io.Writer, also func(done, total int64)) (_ *module.StateDict, id string, err error) {
	model, id, err := m.open()
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	warnOf(stderr, model)
	meter := term.NewMeter(stderr, "loading", "loaded", m.name)
	sd, err := module.LoadModel(ctx, dev, model, module.LoadOptions{FileLayout: m.load.fileLayout, DType: m.load.convert(), Progress: func(done, total int64) {
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
		return nil, "", errors.Join(err, sd.Close())
	}
	return sd, id, err
}

// warnOf prints the warnings about the files of a model.
func warnOf(stderr io.Writer, model *safetensors.Model) {
	for _, warning := range model.Warnings() {
		fmt.Fprintf(stderr, "warning: %s\n", term.Printable(warning))
	}
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
