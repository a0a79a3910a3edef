package nvrtc

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Severity is the severity of a diagnostic.
type Severity uint8

const (
	// SeverityError prevents compilation.
	SeverityError Severity = iota
	// SeverityWarning does not prevent compilation.
	SeverityWarning
	// SeverityNote explains the diagnostic before it.
	SeverityNote
)

// String returns the severity as compilers print it.
func (s Severity) String() string {
	return [...]string{"error", "warning", "note"}[min(s, SeverityNote)]
}

// Diagnostic is a message of the compiler.
type Diagnostic struct {
	// File is the name of the source or header. It is empty for a message about the options.
	File string
	// Line is the line, from 1. It is 0 if unknown.
	Line int
	// Column is the column in characters, from 1. It is 0 if unknown.
	Column int
	// Severity is the severity.
	Severity Severity
	// Code is the compiler's number of the message, such as 177-D. It is empty for most errors.
	Code string
	// Message is the message, in one line.
	Message string
	// Context are the lines of the log below the message: the source line, a mark, and instantiations.
	Context string
}

// String returns the diagnostic as "file:line:column: severity: message".
func (d Diagnostic) String() string {
	var b strings.Builder
	if d.File != "" {
		b.WriteString(d.File + ":")
		if d.Line > 0 {
			b.WriteString(strconv.Itoa(d.Line) + ":")
			if d.Column > 0 {
				b.WriteString(strconv.Itoa(d.Column) + ":")
			}
		}
		b.WriteByte(' ')
	}
	b.WriteString(d.Severity.String() + ": " + d.Message)
	return b.String()
}

// CompileError means that the library refused the source or the options. It unwraps to an [Error].
type CompileError struct {
	// Source is the name of the source.
	Source string
	// Result is the library's code, such as [ERROR_COMPILATION] or [ERROR_INVALID_OPTION].
	Result Result
	// Diagnostics are the messages of the log, in order.
	Diagnostics []Diagnostic
	// Log is the log of the compiler.
	Log string
}

// Error returns the first error with its place, and the number of the others.
func (e *CompileError) Error() string {
	var first *Diagnostic
	others := 0
	for i := range e.Diagnostics {
		switch {
		case e.Diagnostics[i].Severity != SeverityError:
		case first == nil:
			first = &e.Diagnostics[i]
		default:
			others++
		}
	}
	if first == nil {
		return "nvrtc: " + e.Source + ": " + e.Unwrap().Error()
	}
	text := first.String()
	if first.File == "" {
		text = "nvrtc: " + e.Source + ": " + first.Message
	}
	switch {
	case others == 1:
		text += " (and 1 more error)"
	case others > 1:
		text += fmt.Sprintf(" (and %d more errors)", others)
	}
	return text
}

// Unwrap returns the library's code as an [Error].
func (e *CompileError) Unwrap() error { return Error{Result: e.Result} }

// The compiler's front end writes "file(line): severity #code: message", the assembler "ptxas file, line N; severity :
// message", and the library "nvrtc: severity: message".
var (
	frontEnd  = regexp.MustCompile(`^(.*)\((\d+)\): (catastrophic error|internal error|error|warning|remark|note)(?: #([0-9]+(?:-D)?))?: (.*)$`)
	assembler = regexp.MustCompile(`^ptxas (?:(.*), line (\d+); )?(fatal|error|warning|info)\s*: (.*)$`)
	option    = regexp.MustCompile(`^nvrtc: (error|warning): (.*)$`)
)

// parseLog returns the messages of a log.
func parseLog(log string) []Diagnostic {
	var list []Diagnostic
	inside := false // in the lines below a message of the front end
	for line := range strings.Lines(log) {
		line = strings.TrimRight(line, "\r\n")
		if d, ok := parseLine(line); ok {
			list = append(list, d)
			inside = true
			continue
		}
		if line == "" || !strings.HasPrefix(line, " ") {
			inside = false
		}
		if inside {
			d := &list[len(list)-1]
			d.addContext(line)
		}
	}
	return list
}

func parseLine(line string) (Diagnostic, bool) {
	if m := frontEnd.FindStringSubmatch(line); m != nil {
		n, _ := strconv.Atoi(m[2]) // out of range: unknown
		return Diagnostic{File: m[1], Line: n, Severity: severity(m[3]), Code: m[4], Message: m[5]}, true
	}
	if m := assembler.FindStringSubmatch(line); m != nil {
		if m[1] == "" && m[3] == "fatal" && strings.Contains(m[4], "aborted due to errors") {
			return Diagnostic{}, false // repeats that there are errors
		}
		n, _ := strconv.Atoi(m[2])
		return Diagnostic{File: m[1], Line: n, Severity: severity(m[3]), Message: m[4]}, true
	}
	if m := option.FindStringSubmatch(line); m != nil {
		return Diagnostic{Severity: severity(m[1]), Message: m[2]}, true
	}
	return Diagnostic{}, false
}

func severity(word string) Severity {
	switch word {
	case "warning", "remark":
		return SeverityWarning
	case "note", "info":
		return SeverityNote
	}
	return SeverityError
}

// indent is the number of spaces before a quoted source line.
const indent = 2

// addContext adds a line below the message. A line that contains only ^ marks the column of the line before it.
func (d *Diagnostic) addContext(line string) {
	if before, after, ok := strings.Cut(line, "^"); ok && strings.TrimSpace(before)+strings.Trim(after, "~ ") == "" && d.Column == 0 {
		d.Column = max(utf8.RuneCountInString(before)-indent+1, 0)
	}
	if d.Context != "" {
		d.Context += "\n"
	}
	d.Context += line
}
