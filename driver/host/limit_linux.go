package host

import "fmt"

// MemoryLimit implements [driver.Device]: the memory of this machine, or the smallest limit of the control groups that
// this process is in.
func (d *Device) MemoryLimit() (bytes int64, why string) {
	return d.system.limit(d.info.TotalBytes)
}

// limit returns the smallest of total and the limits of the control groups, and its origin.
func (s system) limit(total int64) (bytes int64, why string) {
	bytes, why = total, "this machine's memory"
	for _, g := range s.memoryGroups() {
		if n, ok := g.number(g.limitName); ok && n > 0 && (bytes <= 0 || n < bytes) {
			bytes, why = n, fmt.Sprintf("the memory limit of control group /%s", g.dir)
		}
	}
	return bytes, why
}
