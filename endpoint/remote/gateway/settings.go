package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// EnvPrefix begins the name of the environment variable of each flag: --max-request is SHAREDTENSOR_MAX_REQUEST.
const EnvPrefix = "SHAREDTENSOR_"

// maxConfigBytes is the largest configuration file.
const maxConfigBytes = 1 << 20

// Setting is one setting as it is in force.
type Setting struct {
	// Name is the flag without its dashes, which is also the key in the file.
	Name string `json:"name"`
	// Value is what holds, as the flag takes it.
	Value string `json:"value"`
	// Origin is "flag", "environment", "file" or "default".
	Origin string `json:"origin"`
}

// ApplySettings gives the flags of set that were not on the command line the value of their environment variable, else
// that of the YAML file, whose keys are the names of the flags. An empty path stands for no file. It returns all
// settings in the order of their names. Every error names the variable, or the line of the file.
func ApplySettings(set *pflag.FlagSet, lookup func(string) (string, bool), path string) ([]Setting, error) {
	origin := map[string]string{}
	set.Visit(func(f *pflag.Flag) { origin[f.Name] = "flag" })
	var errs []error
	set.VisitAll(func(f *pflag.Flag) {
		value, found := lookup(EnvName(f.Name))
		if !found || value == "" || origin[f.Name] != "" || hiddenSetting(f) {
			return
		}
		if err := set.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s: %w", EnvName(f.Name), err))
		}
		origin[f.Name] = "environment"
	})
	if path != "" {
		errs = append(errs, applyFile(set, origin, path))
	}
	var all []Setting
	set.VisitAll(func(f *pflag.Flag) {
		if !hiddenSetting(f) {
			all = append(all, Setting{f.Name, settingText(f), orString(origin[f.Name], "default")})
		}
	})
	return all, errors.Join(errs...)
}

// EnvName is the environment variable of a flag.
func EnvName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// hiddenSetting reports whether a flag is of the command line alone.
func hiddenSetting(f *pflag.Flag) bool { return f.Name == "help" || f.Name == "config" || f.Hidden }

// settingText is a flag's value; that of a list without the brackets that pflag writes.
func settingText(f *pflag.Flag) string {
	if list, isList := f.Value.(pflag.SliceValue); isList {
		return strings.Join(list.GetSlice(), ",")
	}
	return f.Value.String()
}

func applyFile(set *pflag.FlagSet, origin map[string]string, path string) error {
	entries, err := readConfigFile(path)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		flag := set.Lookup(e.key)
		if flag == nil || hiddenSetting(flag) {
			errs = append(errs, fmt.Errorf("%s:%d: there is no setting %q%s", path, e.line, e.key, suggest(set, e.key)))
			continue
		}
		if origin[e.key] != "" {
			continue
		}
		if err := setFromFile(flag, e.values); err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %s: %w", path, e.line, e.key, err))
			continue
		}
		origin[e.key] = "file"
	}
	return errors.Join(errs...)
}

// setFromFile sets a flag to one value, or one of a list to several.
func setFromFile(f *pflag.Flag, values []string) error {
	if list, isList := f.Value.(pflag.SliceValue); isList {
		return list.Replace(values)
	}
	if len(values) != 1 {
		return errors.New("takes one value, not a list")
	}
	return f.Value.Set(values[0])
}

// entry is one key of a configuration file.
type entry struct {
	key    string
	line   int
	values []string
}

// readConfigFile reads a YAML file of one mapping from names to scalars or lists of scalars.
func readConfigFile(path string) ([]entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // it was only read
	data, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxConfigBytes {
		return nil, fmt.Errorf("%s: a configuration has at most %d bytes", path, maxConfigBytes)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: holds more than one document", path)
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: a configuration is a mapping of names to values", path, root.Line)
	}
	return entriesOf(path, root)
}

func entriesOf(path string, root *yaml.Node) ([]entry, error) {
	var entries []entry
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		e := entry{key: key.Value, line: key.Line}
		if slices.ContainsFunc(entries, func(o entry) bool { return o.key == e.key }) {
			return nil, fmt.Errorf("%s:%d: %s is there twice", path, e.line, e.key)
		}
		switch {
		case value.Kind == yaml.ScalarNode:
			e.values = []string{value.Value}
		case value.Kind == yaml.SequenceNode && !slices.ContainsFunc(value.Content, notScalar):
			for _, item := range value.Content {
				e.values = append(e.values, item.Value)
			}
		default:
			return nil, fmt.Errorf("%s:%d: %s: takes a value or a list of values", path, value.Line, e.key)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func notScalar(n *yaml.Node) bool { return n.Kind != yaml.ScalarNode }

// suggest names the setting that was probably meant.
func suggest(set *pflag.FlagSet, key string) string {
	best, least := "", 4
	normal := strings.ToLower(strings.ReplaceAll(key, "_", "-"))
	set.VisitAll(func(f *pflag.Flag) {
		if d := editDistance(normal, f.Name); d < least && !hiddenSetting(f) {
			best, least = f.Name, d
		}
	})
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// editDistance is how many letters have to be added, dropped or replaced to make b of a.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost++
			}
			before = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}

func orString(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
