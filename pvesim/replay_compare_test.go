// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// compare returns the difference between a recorded response and the simulator's, or "".
func compare(rec record, a response) string {
	if *rec.Status != a.Status || (a.Status >= 400 || a.Status == 301) && normalText(rec.Reason) != normalText(a.Reason) {
		return fmt.Sprintf("  recorded %d %q %s\n  ours     %d %q %s", *rec.Status, rec.Reason, clip(rec.Body), a.Status, a.Reason, clip([]byte(a.Raw)))
	}
	if d := compareHeaders(rec, a); d != "" {
		return d
	}
	want, got := parsed(rec.Body), parsed([]byte(a.Raw))
	if d := diff(rec.value("", want), rec.value("", got)); d != "" {
		return "  " + d
	}
	return ""
}

func clip(raw []byte) string {
	if len(raw) > 400 {
		return string(raw[:400]) + "..."
	}
	return string(raw)
}

// parsed parses a body: JSON, JSON in a string (raw records), or plain text.
func parsed(raw []byte) any {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	var inner any
	if s, _ := v.(string); strings.HasPrefix(s, "{") && json.Unmarshal([]byte(s), &inner) == nil {
		return inner
	}
	return v
}

func compareHeaders(rec record, a response) string {
	compared := []string{"server", "content-type", "cache-control", "pragma"}
	for k, want := range rec.Headers {
		if slices.Contains(compared, strings.ToLower(k)) && a.Header.Get(k) != want {
			return fmt.Sprintf("  header %s: recorded %q, ours %q", k, want, a.Header.Get(k))
		}
	}
	return ""
}

// variables are fields whose value depends on the machine or the time. Their presence and JSON type are compared.
const variables = `uptime cpu mem memhost disk netin netout diskread diskwrite pid pstart starttime endtime ctime snaptime digest
ssl_fingerprint used avail used_fraction loadavg time localtime wait idle repoid flags mhz model kversion value ticket CSRFPreventionToken
pressurecpufull pressurecpusome pressureiofull pressureiosome pressurememoryfull pressurememorysome upid dns1 free available`

// figures are reported by pvestatd's last cycle: whether a guest's row already has them depends on timing.
const figures = `name status template uptime maxcpu cpu maxmem mem memhost maxdisk disk netin netout diskread diskwrite`

var variable, figure = strings.Fields(variables), strings.Fields(figures)

// value replaces values of a response that may differ: IDs, times, digests, sizes and load.
func (rec record) value(path string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		return rec.object(path, v)
	case []any:
		return rec.list(path, v)
	case string:
		return normalText(v)
	default:
		return v
	}
}

func (rec record) object(path string, m map[string]any) any {
	out := map[string]any{}
	for k, v := range m {
		at := path + "." + k
		switch {
		case rec.hostSpecific(at), reported(m) && slices.Contains(figure, k):
		case at == ".total": // counts lines about locks, and tasks of earlier runs
		case slices.Contains(variable, k):
			out[k] = fmt.Sprintf("<%T>", v)
		case k == "content":
			out[k] = strings.Join(slices.Sorted(strings.SplitSeq(fmt.Sprint(v), ",")), ",")
		default:
			out[k] = rec.value(at, v)
		}
	}
	return out
}

// reported reports whether an object is a guest or storage row that pvestatd updates.
func reported(m map[string]any) bool {
	typ, _ := m["type"].(string)
	_, hasID := m["id"].(string)
	return hasID && (typ == "qemu" || typ == "storage")
}

var (
	hostStatus = regexp.MustCompile(`/nodes/[^/]+/(qemu/.*)?status$`)
	hostFact   = regexp.MustCompile(`^\.data\.(boot-info|current-kernel|rootfs|swap|cpuinfo|memory)\.`)
)

// hostSpecific reports whether this part of a response describes the recording machine.
func (rec record) hostSpecific(path string) bool {
	if hostStatus.MatchString(rec.Path) && hostFact.MatchString(path) {
		return true
	}
	// The root file system of the recording machine was a RAM disk.
	return path == ".data[].maxdisk" && (strings.HasSuffix(rec.Path, "/nodes") || strings.Contains(rec.Path, "/cluster/resources"))
}

// list sorts lists that Proxmox returns in the random order of Perl hashes, and joins the lines of logs.
func (rec record) list(path string, l []any) any {
	if lines, ok := logLines(l); ok {
		return logText(lines)
	}
	var out []any
	for _, v := range l {
		out = append(out, rec.value(path+"[]", v))
	}
	if !strings.Contains(rec.Path, "/firewall/rules") {
		slices.SortStableFunc(out, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	}
	return out
}

func logLines(l []any) (lines []string, ok bool) {
	for _, v := range l {
		m, isMap := v.(map[string]any)
		if !isMap || m["t"] == nil || m["n"] == nil || len(m) != 2 {
			return nil, false
		}
		lines = append(lines, fmt.Sprint(m["t"]))
	}
	return lines, len(l) > 0
}

// logText removes the lines about waiting for a lock: which task waits is not deterministic.
func logText(lines []string) any {
	var out []any
	for _, l := range lines {
		if l == "trying to acquire lock..." || l == " OK" {
			continue
		}
		out = append(out, normalText(l))
	}
	return out
}

var replacements = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`UPID:([^:\s]+):[0-9A-F]{8}:[0-9A-F]{8,9}:[0-9A-F]{8}:`), "UPID:$1:<pid>:"},
	{regexp.MustCompile(`pveupload-[0-9a-f]+`), "pveupload-<id>"},
	{regexp.MustCompile(`tmp_dwnl\.\d+`), "tmp_dwnl.<pid>"},
	{regexp.MustCompile(`conf\.tmp\.\d+`), "conf.tmp.<pid>"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`), "<time>"},
	{regexp.MustCompile(`[\d.]+[KMG]?=[\d.]+s|\(\d[\d.]* [KMG]B/s\)`), "<rate>"},
	{regexp.MustCompile(`^ +0K .*100% .*$`), "<progress>"},
	{regexp.MustCompile(`mac_address: '[0-9a-f:]+'`), "mac_address: '<mac>'"},
	{regexp.MustCompile(`instance-id: [0-9a-f]{40}`), "instance-id: <id>"},
	{regexp.MustCompile(`password: \$5\$\S+`), "password: <hash>"},
	{regexp.MustCompile(`HASH\(0x[0-9a-f]+\)`), "HASH(<address>)"},
	{regexp.MustCompile(`Temporary failure in name resolution`), "Name or service not known"},
	{regexp.MustCompile(`https://127\.0\.0\.1:\d+`), "https://<api>"},
	{regexp.MustCompile(`awaiting response\.\.\. 404 .*`), "awaiting response... 404"},
	{regexp.MustCompile(`ERROR 404: .*`), "ERROR 404"},
}

// normalText replaces the variable parts of a text.
func normalText(s string) string {
	s = toRecordedChecksums.Replace(s)
	for _, rep := range replacements {
		s = rep.pattern.ReplaceAllString(s, rep.with)
	}
	return strings.TrimRight(s, " ")
}

// diff returns the differences between two normalized values.
func diff(want, got any) string {
	var out []string
	recorded, ours := flatten("", want), flatten("", got)
	for _, line := range recorded {
		if !slices.Contains(ours, line) {
			out = append(out, "recorded "+line)
		}
	}
	for _, line := range ours {
		if !slices.Contains(recorded, line) {
			out = append(out, "ours     "+line)
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n  ")
}

// flatten returns the texts of all scalars and empty containers of a value with their paths.
func flatten(path string, v any) (out []string) {
	fields, _ := v.(map[string]any)
	for k, v := range fields {
		out = append(out, flatten(path+"."+k, v)...)
	}
	elements, _ := v.([]any)
	for i, v := range elements {
		out = append(out, flatten(fmt.Sprintf("%s[%d]", path, i), v)...)
	}
	if len(fields)+len(elements) == 0 {
		return []string{path + ": " + clip(fmt.Appendf(nil, "%q", fmt.Sprint(v)))}
	}
	return out
}
