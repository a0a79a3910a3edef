package command

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// topLine is one line of the view.
type topLine struct {
	text    string
	heading bool
}

// topSection is a part of the view: a heading and rows. Rows may be omitted if there is not enough room.
type topSection struct {
	heading string
	rows    []string
}

// defaultWidth is the width of the view without a terminal.
const defaultWidth = 120

// view returns the snapshot as lines. Height 0 means no limit. trouble, if not empty, is the reason why there is no
// newer snapshot.
func (t *topSnapshot) view(width, height int, trouble string) []topLine {
	lines := []topLine{{text: t.title(width)}, {text: t.summary()}}
	if trouble != "" {
		lines[1] = topLine{text: "this is as of " + t.At.Format(time.TimeOnly) + ": " + trouble}
	}
	sections := []topSection{t.memory(width)}
	if len(t.GPUs) > 0 || t.GPUNote != "" {
		sections = append(sections, t.gpus(width))
	}
	if loading := t.loading(width); len(loading.rows) > 0 {
		sections = append(sections, loading)
	}
	if len(t.Owner.Placements) > 0 {
		sections = append(sections, t.placements(width))
	}
	sections = append(sections, t.endpoints(width), t.sessions(width), t.tasks(width))
	room := math.MaxInt
	if height > 0 {
		room = height - len(lines)
	}
	for i, rows := range share(sections, room) {
		if rows < 0 {
			break
		}
		s := sections[i]
		lines = append(lines, topLine{}, topLine{text: s.heading, heading: true})
		for n, row := range s.rows[:rows] {
			if n == rows-1 && rows < len(s.rows) {
				row = fmt.Sprintf("… %d more", len(s.rows)-rows+1)
			}
			lines = append(lines, topLine{text: row})
		}
	}
	for i := range lines {
		lines[i].text = term.Clip(lines[i].text, max(width, 1))
	}
	return lines
}

// share returns the number of rows for each section, -1 for a section that is omitted. Short sections get all their
// rows, and long sections share the rest.
func share(sections []topSection, height int) []int {
	rows := make([]int, len(sections))
	const frame = 2 // an empty line and the heading
	fit := min(len(sections), max(height, 0)/(frame+1))
	for i := fit; i < len(sections); i++ {
		rows[i] = -1
	}
	for i := range fit {
		rows[i] = 0
	}
	left := height - fit*frame
	for left > 0 {
		gave := false
		for i := range fit {
			if left > 0 && rows[i] < len(sections[i].rows) {
				rows[i]++
				left--
				gave = true
			}
		}
		if !gave {
			break
		}
	}
	return rows
}

// title returns the owner's name, with the time at the right edge.
func (t *topSnapshot) title(width int) string {
	o := t.Owner
	text := fmt.Sprintf("%s, up %s, on %s", processText(endpoint.Process{PID: o.PID, Label: term.Printable(o.Label)}),
		term.FormatAge(o.Uptime), term.Printable(o.Socket))
	clock := t.At.Format(time.TimeOnly)
	text = term.Clip(text, max(width-len(clock)-2, 1))
	return text + strings.Repeat(" ", max(width-utf8.RuneCountInString(text)-len(clock), 1)) + clock
}

// summary returns the counters in one line, the most important first.
func (t *topSnapshot) summary() string {
	s := t.Owner.Stats
	words := []string{term.Count(int(s.Clients), "client")}
	if r := t.Rates; r != nil {
		words = append(words, formatPerSecond(r.Calls)+" calls/s", percent(r.Hits, r.Calls)+" hits", formatPerSecond(r.Requests)+" requests/s",
			formatPerSecond(r.Errors)+" errors/s")
	}
	words = append(words, fmt.Sprintf("tasks %d running of %d", s.TasksRunning, s.Tasks))
	if s.CacheEntries > 0 {
		words = append(words, fmt.Sprintf("%s cached in %s", term.Count(int(s.CacheEntries), "result"), term.FormatBytes(int64(s.CacheBytes))))
	}
	if results := s.SlabsReused + s.SlabsFresh; results > 0 {
		words = append(words, percent(float64(s.SlabsReused), float64(results))+" of results in used memory")
	}
	if all := s.PoolReused + s.PoolFresh; all > 0 {
		words = append(words, fmt.Sprintf("pool keeps %s, %s used again", term.FormatBytes(int64(s.PoolBytes)), percent(float64(s.PoolReused), float64(all))))
	}
	if s.Objects > 0 {
		words = append(words, term.Count(int(s.Objects), "object"))
	}
	return strings.Join(words, ", ")
}

// percent formats part of whole as a percentage, or a dash if whole is 0.
func percent(part, whole float64) string {
	if whole <= 0 {
		return "-"
	}
	return strconv.FormatFloat(100*min(part/whole, 1), 'f', 0, 64) + "%"
}

// formatPerSecond formats a rate.
func formatPerSecond(v float64) string {
	if v >= 99.95 || v == 0 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

// memory draws a bar for each device and for each of its parts. The longest bar has full width.
func (t *topSnapshot) memory(width int) topSection {
	s := t.Owner.Stats
	section := topSection{heading: fmt.Sprintf("MEMORY  %s owned, %s mapped by clients",
		term.FormatBytes(int64(s.BytesOwned)), term.FormatBytes(int64(s.BytesMapped)))}
	most, names := int64(0), 0
	for _, d := range t.Devices {
		most = max(most, d.Bytes)
		names = max(names, utf8.RuneCountInString(d.Device))
		for _, m := range d.Models {
			most = max(most, m.Bytes)
			names = max(names, utf8.RuneCountInString(m.label()))
		}
		for _, u := range d.Others {
			names = max(names, utf8.RuneCountInString(u.label()))
		}
	}
	names = min(names, max(width/4, 8))
	bars := max(min(width/3, width-names-36), 4)
	row := func(name string, bytes int64, rest string) {
		name = term.Clip(name, names)
		section.rows = append(section.rows, strings.TrimRight(fmt.Sprintf("%s%s  %s %9s  %s", name,
			strings.Repeat(" ", names-utf8.RuneCountInString(name)), bar(bytes, most, bars), term.FormatBytes(bytes), rest), " "))
	}
	for _, d := range t.Devices {
		row(d.Device, d.Bytes, term.Printable(d.Name))
		for _, m := range d.Models {
			state := ""
			if m.State != "current" {
				state = ", " + m.State
			}
			row(m.label(), m.Bytes, term.Count(m.Holders, "holder")+state)
		}
		for _, u := range d.Others {
			row(u.label(), u.Bytes, term.Count(u.Storages, "piece"))
		}
	}
	return section
}

// uses maps purposes to words.
var uses = map[endpoint.MemoryUsage]string{
	endpoint.MemoryPlacements: "copies of models",
	endpoint.MemoryObjects:    "managed objects", endpoint.MemoryResults: "cached results", endpoint.MemoryTasks: "results of tasks",
}

// label returns the label of a purpose below its device.
func (u topUse) label() string { return "  " + cmp.Or(uses[u.Use], term.Printable(string(u.Use))) }

// label returns the label of a version below its device.
func (m topModel) label() string { return fmt.Sprintf("  %s v%d", term.Printable(m.Name), m.Version) }

// eighths are blocks of increasing width.
var eighths = []rune(" ▏▎▍▌▋▊▉█")

// bar draws part of whole as a bar in brackets, width characters wide inside. A positive part is always visible.
func bar(part, whole int64, width int) string {
	n := 0
	if whole > 0 && part > 0 {
		n = max(int(float64(part)/float64(whole)*float64(8*width)+0.5), 1)
	}
	n = min(n, 8*width)
	text := strings.Repeat("█", n/8)
	if n%8 > 0 {
		text += string(eighths[n%8])
	}
	return "▕" + text + strings.Repeat(" ", width-utf8.RuneCountInString(text)) + "▏"
}

// tableSection converts a table to a section. Its first line is the heading.
func tableSection(t *term.Table, width int) topSection {
	var b bytes.Buffer
	_ = t.Write(&b, width) // a buffer does not fail
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	return topSection{lines[0], lines[1:]}
}

// loading lists the versions that the owner is loading or failed to load.
func (t *topSnapshot) loading(width int) topSection {
	table := term.NewTable(term.Column{Title: "LOADING", Give: 1}, term.Column{Title: "DONE", Align: term.Right}, term.Column{Title: "OF", Align: term.Right}, term.Column{Title: "STATE", Give: 2})
	for _, m := range t.Models {
		if l := m.Loading; l != nil {
			table.Add(m.Name, term.FormatBytes(l.Done), term.FormatBytes(l.Total), loadText(l))
		}
	}
	return tableSection(table, width)
}

// placements lists the copies of versions, below the devices with their budgets and counters.
func (t *topSnapshot) placements(width int) topSection {
	table := term.NewTable(term.Column{Title: "PLACEMENTS", Give: 1}, term.Column{Title: "BYTES", Align: term.Right}, term.Column{Title: "OF", Align: term.Right},
		term.Column{Title: "HITS", Align: term.Right}, term.Column{Title: "COPIES", Align: term.Right}, term.Column{Title: "EVICTED", Align: term.Right},
		term.Column{Title: "FAILED", Align: term.Right}, term.Column{Title: "STATE", Give: 2})
	for _, d := range t.Owner.Placements {
		table.Add(driverName(d.Device), term.FormatBytes(d.Bytes), term.FormatBytes(d.Budget), strconv.FormatUint(d.Hits, 10), strconv.FormatUint(d.Copies, 10),
			strconv.FormatUint(d.Evictions, 10), strconv.FormatUint(d.Failures, 10), "kept for "+term.FormatDuration(d.Keep))
		for _, m := range t.Models {
			for _, v := range m.Versions {
				for _, p := range v.Placements {
					if p.Device.UUID == d.Device.UUID {
						table.Add(fmt.Sprintf("  %s v%d", m.Name, v.Version), term.FormatBytes(p.Bytes), "", strconv.FormatUint(p.Hits, 10), "", "", "",
							placementState(p, t.At)+", "+term.Count(p.Holders, "holder"))
					}
				}
			}
		}
	}
	return tableSection(table, width)
}

func (t *topSnapshot) endpoints(width int) topSection {
	table := term.NewTable(term.Column{Title: "ENDPOINT", Give: 1}, term.Column{Title: "CALLS/S", Align: term.Right}, term.Column{Title: "CALLS", Align: term.Right},
		term.Column{Title: "HITS", Align: term.Right}, term.Column{Title: "FAILED", Align: term.Right}, term.Column{Title: "RUNS", Align: term.Right},
		term.Column{Title: "P50", Align: term.Right}, term.Column{Title: "P90", Align: term.Right}, term.Column{Title: "P99", Align: term.Right})
	for _, e := range t.Owner.Endpoints {
		rate := "-"
		if t.Rates != nil {
			rate = formatPerSecond(t.calls(e.Name))
		}
		took := func(d time.Duration) string {
			if e.Runs == 0 {
				return "-"
			}
			return term.FormatDuration(d)
		}
		table.Add(e.Name, rate, strconv.FormatUint(e.Calls, 10), percent(float64(e.CacheHits), float64(e.Calls)), strconv.FormatUint(e.Failures, 10),
			strconv.FormatUint(e.Runs, 10), took(e.P50), took(e.P90), took(e.P99))
	}
	return tableSection(table, width)
}

func (t *topSnapshot) sessions(width int) topSection {
	table := term.NewTable(term.Column{Title: "SESSION", Align: term.Right}, term.Column{Title: "PID", Align: term.Right}, term.Column{Title: "AGE", Align: term.Right},
		term.Column{Title: "HOLDS", Align: term.Right}, term.Column{Title: "BYTES", Align: term.Right}, term.Column{Title: "OBJECTS", Align: term.Right},
		term.Column{Title: "WAITING", Align: term.Right}, term.Column{Title: "LABEL", Give: 1})
	for _, s := range t.Owner.Sessions {
		session := strconv.FormatUint(s.Session, 10)
		if s.Self {
			session = "owner"
		}
		table.Add(session, strconv.Itoa(int(s.PID)), term.FormatAge(t.At.Sub(s.Since)),
			strconv.FormatUint(s.Leases, 10), term.FormatBytes(int64(s.Bytes)), strconv.FormatUint(s.Objects, 10),
			strconv.FormatUint(s.Requests, 10), s.Label)
	}
	return tableSection(table, width)
}

func (t *topSnapshot) tasks(width int) topSection {
	table := taskTable(t.Tasks, t.At)
	table.Columns[0].Title = "TASK"
	return tableSection(table, width)
}
