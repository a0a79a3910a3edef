package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
)

// docText is the comment of one name.
type docText struct {
	text  string
	group string // name of its file, without .txt
	line  int
	used  bool
}

// readDocs reads the doc files. Each entry starts in the first column with a name of cuda.h, a colon and the text,
// which continues in indented lines. An empty line inside an entry starts a paragraph. Lines that start with # are
// comments.
func readDocs(dir string) (map[string]*docText, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	sort.Strings(files)
	docs := map[string]*docText{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if err := readDocFile(docs, path, string(text)); err != nil {
			return nil, err
		}
	}
	return docs, nil
}

func readDocFile(docs map[string]*docText, path, text string) error {
	group := strings.TrimSuffix(filepath.Base(path), ".txt")
	var current *docText
	for i, line := range strings.Split(text, "\n") {
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			if current != nil {
				current.text += "\n"
			}
		case line[0] == ' ' || line[0] == '\t':
			if current == nil {
				return fmt.Errorf("%s:%d: text before the first name", path, i+1)
			}
			current.text += "\n" + strings.TrimSpace(line)
		default:
			name, rest, ok := strings.Cut(line, ":")
			if !ok || strings.ContainsAny(name, " \t") {
				return fmt.Errorf("%s:%d: a line must start with a name and a colon", path, i+1)
			}
			if other := docs[name]; other != nil {
				return fmt.Errorf("%s:%d: %s is also in %s.txt:%d", path, i+1, name, other.group, other.line)
			}
			current = &docText{text: strings.TrimSpace(rest), group: group, line: i + 1}
			docs[name] = current
		}
	}
	for _, d := range docs {
		d.text = strings.TrimSpace(d.text)
	}
	return nil
}

// addDocs sets the comment of every function and type. A name without a text, or a text without a name, is an error
// unless lax is set.
func (m *model) addDocs(docs map[string]*docText, lax bool) error {
	take := func(c string) *docText {
		d := docs[c]
		if d == nil {
			m.missing = append(m.missing, c)
			return &docText{group: m.group(c)}
		}
		d.used = true
		return d
	}
	for _, f := range m.functions {
		if f.newer == nil || docs[f.name] != nil {
			d := take(f.name)
			f.doc, f.group = d.text, d.group
		}
	}
	for _, f := range m.functions {
		if f.newer != nil && f.doc == "" {
			f.doc = fmt.Sprintf("is an older form of [%s], for libraries without the newer one.", f.newer.goName)
			if f.newer.since > 0 {
				f.doc = fmt.Sprintf("is the form of [%s] that CUDA %s replaced, for drivers without the newer one.",
					f.newer.goName, versionText(f.newer.since))
			}
		}
		if f.newer != nil {
			f.group = "older"
		}
	}
	for _, c := range m.documentedTypes() {
		m.typeDocs[c] = take(c).text
	}
	for _, c := range m.constantNames() {
		if d := docs[c]; d != nil {
			m.typeDocs[c] = d.text
			d.used = true
		}
	}
	var unused []string
	for c, d := range docs {
		if !d.used {
			unused = append(unused, c)
		}
	}
	sort.Strings(unused)
	if lax {
		return nil
	}
	if err := m.checkLinks(docs); err != nil {
		return err
	}
	if len(m.missing) > 0 && !m.target.brief {
		return fmt.Errorf("no text for %s", strings.Join(m.missing, ", "))
	}
	if len(unused) > 0 {
		return fmt.Errorf("text for names that are not in the header: %s", strings.Join(unused, ", "))
	}
	return nil
}

// group returns the file for a function without a text: the subject in its name.
func (m *model) group(c string) string {
	name := strings.ToLower(m.target.goName(c))
	for _, subject := range []string{"vgpu", "gpm", "gpuinstance", "computeinstance", "nvlink", "unit", "confcompute", "ecc", "power", "clock"} {
		if strings.Contains(name, subject) {
			return subject
		}
	}
	return "other"
}

var docLink = regexp.MustCompile(`\[([A-Z]\w*)\]`)

// checkLinks returns an error for a text with a link to an unknown name.
func (m *model) checkLinks(docs map[string]*docText) error {
	for c, d := range docs {
		for _, match := range docLink.FindAllStringSubmatch(d.text, -1) {
			name := match[1]
			if _, ok := m.names.taken[name]; !ok && !slices.Contains(m.target.handwritten, name) {
				return fmt.Errorf("%s.txt:%d: the text of %s has a link to unknown name %s", d.group, d.line, c, name)
			}
		}
	}
	return nil
}

func versionText(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }
