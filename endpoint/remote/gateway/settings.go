package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// EnvPrefix is the prefix of each flag's environment variable: --max-request is SHAREDTENSOR_MAX_REQUEST.
const EnvPrefix = "SHAREDTENSOR_"

// maxConfigBytes is the maximum size of a configuration file.
const maxConfigBytes = 1 << 20

// Setting is an effective setting.
type Setting struct {
	// Name is the flag without its dashes. It is also the key in the file.
	Name string `json:"name"`
	// Value is the effective value, in the syntax of the flag. Credentials in URLs are replaced by ***.
	Value string `json:"value"`
	// Origin is "flag", "environment", "file" or "default".
	Origin string `json:"origin"`
}

// ApplySettings sets each flag of set that is not on the command line from its environment variable, otherwise from the
// YAML file, whose keys are flag names. An empty path means no file. It returns all settings ordered by name. Errors
// name the variable or the line of the file.
func ApplySettings(set *pflag.FlagSet, lookup func(string) (string, bool), path string) ([]Setting, error) {
	origin := map[string]string{}
	set.VisitAll(func(f *pflag.Flag) {
		if f.Changed { // also by another set that shares the flag, such as a command's
			origin[f.Name] = "flag"
		}
	})
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
			all = append(all, Setting{f.Name, shownSetting(f), orString(origin[f.Name], "default")})
		}
	})
	return all, errors.Join(errs...)
}

// EnvName returns the environment variable of a flag.
func EnvName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// hiddenSetting reports whether a flag can be set only on the command line.
func hiddenSetting(f *pflag.Flag) bool { return f.Name == "help" || f.Name == "config" || f.Hidden }

// urlCredentials matches the user and password, or the token, of a URL.
var urlCredentials = regexp.MustCompile(`(://)[^/,]*@`)

// shownSetting returns the value of a flag without credentials.
func shownSetting(f *pflag.Flag) string {
	if f.Name == "nats" || f.Name == "nats-leaf" {
		return hideCredentials(settingText(f))
	}
	return urlCredentials.ReplaceAllString(settingText(f), "${1}***@")
}

// hideCredentials replaces everything before the last @ in NATS URLs, which have no path. Malformed credentials may
// contain commas and slashes. (*url.URL).Redacted would show a token.
func hideCredentials(text string) string {
	at := strings.LastIndexByte(text, '@')
	if at < 0 {
		return text
	}
	scheme, _, found := strings.Cut(text[:at], "://")
	if !found {
		return "***" + text[at:]
	}
	return scheme + "://***" + text[at:]
}

// settingText returns a flag's value. Lists are written without the brackets of pflag.
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
			errs = append(errs, fmt.Errorf("%s:%d: unknown setting %q%s", path, e.line, e.key, suggest(set, e.key)))
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

// setFromFile sets a flag to one value, or a list flag to several.
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

// readConfigFile reads a YAML file with one mapping from names to scalars or lists of scalars.
func readConfigFile(path string) ([]entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // best effort: the file was only read
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
			return nil, fmt.Errorf("%s:%d: %s is set twice", path, e.line, e.key)
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

// suggest returns the setting name closest to key.
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

// editDistance returns the Levenshtein distance of a and b.
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
