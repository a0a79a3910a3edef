package nvrtc

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// includes are the files that a compilation can read: those that its source and headers include, directly or not. Every
// place that an include could mean is recorded, whether or not a file is there, because a new file there changes the result.
type includes struct {
	dirs []string // absolute folders
	any  bool     // Options.AnyInclude
	// headers are the headers in memory, which the compiler searches first.
	headers map[string]string
	// found maps each place to the content of its file behind a newline, or to "" if there is none.
	found map[string]string
	// computed reports that a file is named by a macro, so that found is not complete.
	computed bool
	bytes    int
}

// The limits of the files that are searched for includes.
const (
	maxIncludes     = 20_000
	maxIncludeBytes = 256 << 20
)

// scanIncludes finds the files that the compilation can read. It fails with [ErrOptions] if the source includes one that
// o does not allow.
func scanIncludes(name, source string, o *Options) (*includes, error) {
	in := &includes{any: o.AnyInclude, headers: o.Headers, found: map[string]string{}}
	for _, dir := range o.IncludeDirs {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return nil, invalid("folder %q: %w", dir, err)
		}
		in.dirs = append(in.dirs, dir)
	}
	if err := in.text(name, source, ""); err != nil {
		return nil, err
	}
	for _, header := range slices.Sorted(maps.Keys(o.Headers)) {
		if err := in.text(header, o.Headers[header], ""); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// text records the includes of a text. name is its name in errors. dir is its folder if it is a file, and empty if it is
// the source or a header in memory, which the caller may have received from somebody.
func (in *includes) text(name, text, dir string) error {
	for _, d := range directives(text) {
		if d.path == "" {
			if !in.any {
				return invalid("%s: %q does not name its file, so it can include any: set AnyInclude to permit it", name, d.line)
			}
			in.computed = true
			continue
		}
		_, inMemory := in.headers[d.path]
		if !inMemory && !in.any && (filepath.IsAbs(d.path) && !in.inside(filepath.Clean(d.path)) || dir == "" && hasParent(d.path)) {
			return in.outside(name, d)
		}
		for _, place := range in.places(d, dir) {
			if in.any || in.inside(place) {
				if err := in.file(place); err != nil {
					return fmt.Errorf("nvrtc: %s: %q: %w", name, d.line, err)
				}
			} else if _, err := os.Lstat(place); err == nil {
				return in.outside(name, d)
			}
		}
	}
	return nil
}

func (in *includes) outside(name string, d include) error {
	return invalid("%s: %q includes a file outside of IncludeDirs: set AnyInclude to permit it", name, d.line)
}

// hasParent reports whether the path has a parent folder.
func hasParent(path string) bool {
	return slices.Contains(strings.FieldsFunc(path, func(r rune) bool { return r == '/' || r == '\\' }), "..")
}

// places returns the paths that an include of a text in dir can mean.
func (in *includes) places(d include, dir string) []string {
	if filepath.IsAbs(d.path) {
		return []string{filepath.Clean(d.path)}
	}
	dirs := slices.Clone(in.dirs)
	if dir != "" {
		dirs = append(dirs, dir)
	}
	for i := range dirs {
		dirs[i] = filepath.Join(dirs[i], d.path)
	}
	return dirs
}

// inside reports whether the path is below a folder of IncludeDirs.
func (in *includes) inside(path string) bool {
	return slices.ContainsFunc(in.dirs, func(dir string) bool {
		return strings.HasPrefix(path, strings.TrimSuffix(dir, string(filepath.Separator))+string(filepath.Separator))
	})
}

// file records a place and, if a file is there, the includes of the file.
func (in *includes) file(path string) error {
	if _, ok := in.found[path]; ok {
		return nil
	}
	if len(in.found) == maxIncludes {
		return fmt.Errorf("%w: more than %d files are included", ErrOptions, maxIncludes)
	}
	content, err := in.read(path)
	if err != nil {
		return err
	}
	in.found[path] = content // before the search of the content, which may include itself
	return in.text(path, content, filepath.Dir(path))
}

// read returns the content of a file behind a newline, which distinguishes an empty file from none. It returns "" if there is
// no file that the compiler can read.
func (in *includes) read(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), err == nil && info.IsDir():
		return "", nil
	case err != nil: // such as a file in the place of a folder
		return "", nil //nolint:nilerr // the compiler reports it if it has to read the file
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%w: %s is not a regular file", ErrOptions, path)
	}
	if info.Size() > int64(maxIncludeBytes-in.bytes) {
		return "", fmt.Errorf("%w: the included files have more than %d bytes", ErrOptions, maxIncludeBytes)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", nil //nolint:nilerr // as above
	}
	in.bytes += len(data)
	return "\n" + string(data), nil
}

// describe returns the places and their contents, in an order that depends on nothing else.
func (in *includes) describe() []string {
	var all []string
	for _, path := range slices.Sorted(maps.Keys(in.found)) {
		all = append(all, path, in.found[path])
	}
	return all
}

// include is a directive that includes a file or tests whether one exists.
type include struct {
	line string
	path string // empty if the line does not contain it
}

var (
	// directive matches the beginning of an include, behind white space and comments. The directive may continue in the next
	// line if a comment does.
	directive = regexp.MustCompile(`^[\s\v]*(?:(?:#|%:)(?:[\s\v]|/\*.*?\*/)*(include_next|include|import|embed)\b|(?:export[\s\v]+)?(import)[\s\v]*(?:["<]|$))`)
	open      = regexp.MustCompile(`^[\s\v]*(?:#|%:)(?:[\s\v]|/\*.*?\*/)*/\*`)
	test      = regexp.MustCompile(`\b__has_(?:include_next|include|embed)[\s\v]*\(`)
	file      = regexp.MustCompile(`^[\s\v]*(?:"([^"<>]+)"|<([^"<>]+)>)`)
	splice    = regexp.MustCompile(`\\[ \t\v\f]*\r?\n`)
	newline   = regexp.MustCompile(`\r\n|\r|\n`)
)

// directives returns the includes of a text. Comments and strings are not recognised, so an include in one of them may be
// among the result, but none is missing. For the same reason, the text is searched both as it is and with lines joined.
func directives(text string) []include {
	text = strings.TrimPrefix(text, "\ufeff")
	variants := []string{text}
	if strings.Contains(text, "??") { // trigraphs, in old versions of C++
		variants = append(variants, strings.NewReplacer("??/", `\`, "??=", "#").Replace(text))
	}
	for _, v := range slices.Clone(variants) {
		if strings.Contains(v, `\`) {
			variants = append(variants, strings.ReplaceAll(v, "\\\n", ""), splice.ReplaceAllString(v, ""))
		}
	}
	var all []include
	seen := map[string]bool{}
	for _, v := range variants {
		for _, line := range newline.Split(v, -1) {
			if !seen[line] && mayInclude(line) {
				seen[line] = true
				all = append(all, inLine(line)...)
			}
		}
	}
	return all
}

// mayInclude selects lines that are worth a search.
func mayInclude(line string) bool {
	return strings.Contains(line, "include") || strings.Contains(line, "import") || strings.Contains(line, "embed") || strings.Contains(line, "/*")
}

// inLine returns the includes of a line. One can begin at the start of the line and behind each comment.
func inLine(line string) []include {
	var all []include
	add := func(rest string) {
		d := include{line: strings.TrimSpace(line)}
		if m := file.FindStringSubmatch(rest); m != nil {
			d.path = m[1] + m[2]
		}
		all = append(all, d)
	}
	for rest, more := line, true; more; _, rest, more = strings.Cut(rest, "*/") {
		if m := directive.FindStringSubmatchIndex(rest); m != nil {
			add(rest[max(m[3], m[5]):])
		}
		if m := open.FindStringIndex(rest); m != nil && !strings.Contains(rest[m[1]:], "*/") {
			add("")
		}
	}
	for _, m := range test.FindAllStringIndex(line, -1) {
		add(line[m[1]:])
	}
	return all
}
