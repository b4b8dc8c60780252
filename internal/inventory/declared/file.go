// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package declared

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"
	kjson "sigs.k8s.io/json"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Upper limits. Larger values are probably typos.
const (
	maxRatio       = 64
	maxPriceFactor = 1000
	maxWatts       = 100_000
	maxEnergyPrice = 100_000 // per kWh, in any currency
)

// LoadSettings reads a host-settings file: JSON of the form
//
//	{"<region>": {"<host>": {"reservedcpus": [0,1], "reservedmemory": 4294967296, ...}}}
//
// Region and host may be shell patterns ("*", "pve-*"). For an empty path it returns the
// defaults. It fails if the file cannot be read or is invalid.
func LoadSettings(file string) (Settings, error) {
	if file == "" {
		return Settings{}, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return Settings{}, fmt.Errorf("reading the host settings: %w", err)
	}
	settings, err := ParseSettings(data)
	if err != nil {
		return Settings{}, fmt.Errorf("reading the host settings %s: %w", file, err)
	}
	return settings, nil
}

// ParseSettings parses the content of a host settings file; see LoadSettings.
func ParseSettings(data []byte) (Settings, error) {
	var file map[string]map[string]map[string]json.RawMessage
	if err := unmarshalStrict(data, &file); err != nil {
		return Settings{}, fmt.Errorf(`%w (want {"region": {"host": {"field": value}}})`, err)
	}
	var rules []rule
	for _, region := range slices.Sorted(maps.Keys(file)) {
		for _, host := range slices.Sorted(maps.Keys(file[region])) {
			r, err := parseRule(region, host, file[region][host])
			if err != nil {
				return Settings{}, fmt.Errorf("region %q, host %q: %w", region, host, err)
			}
			rules = append(rules, r)
		}
	}
	return newSettings(rules), nil
}

// unmarshalStrict decodes JSON and rejects unknown and duplicate keys. It returns only the
// first problem, to keep errors on one line.
func unmarshalStrict(data []byte, into any) error {
	problems, err := kjson.UnmarshalStrict(data, into)
	if err == nil && len(problems) > 0 {
		err = problems[0]
	}
	return err
}

func parseRule(region, host string, fields map[string]json.RawMessage) (rule, error) {
	r := rule{region: region, host: host}
	for _, pattern := range []string{region, host} {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return r, fmt.Errorf("found the name %q, want a name or a pattern such as \"pve-*\"", pattern)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		parse, ok := settingFields[name]
		if !ok {
			return r, fmt.Errorf("field %q is unknown, want one of %s", name,
				strings.Join(slices.Sorted(maps.Keys(settingFields)), ", "))
		}
		set, err := parse(fields[name])
		if err != nil {
			return r, fmt.Errorf("field %q: found %s, %w", name, shorten(fields[name]), err)
		}
		r.apply = append(r.apply, set)
	}
	return r, nil
}

// setter applies a field of the file to the settings of a matching Host.
type setter = func(*HostSettings)

// settingFields parse the fields of an entry. The first group is the format of earlier
// providers.
var settingFields = map[string]func(json.RawMessage) (setter, error){
	"sockets":      countField(func(s *HostSettings, n int) { s.Topology.Sockets = n }),
	"cores":        countField(func(s *HostSettings, n int) { s.Topology.Cores = n }),
	"threads":      countField(func(s *HostSettings, n int) { s.Topology.Threads = n }),
	"uncorecaches": countField(func(s *HostSettings, n int) { s.Topology.UncoreCaches = n }),
	"siblings":     parseSiblings,
	"nodes":        parseCells,
	"reservedcpus": parseReservedCPUs,
	"reservedmemory": func(raw json.RawMessage) (setter, error) {
		bytes, err := parseBytes(raw)
		return func(s *HostSettings) { s.ReservedMemoryBytes = bytes }, err
	},

	"excluded": func(raw json.RawMessage) (setter, error) {
		var excluded bool
		if err := json.Unmarshal(raw, &excluded); err != nil {
			return nil, errors.New("want true or false")
		}
		return func(s *HostSettings) { s.Excluded = excluded }, nil
	},
	"cpuratio":          ratioField(maxRatio, func(s *HostSettings, r float64) { s.CPURatio = r }),
	"memoryratio":       ratioField(maxRatio, func(s *HostSettings, r float64) { s.MemoryRatio = r }),
	"storagehighwater":  ratioField(1, func(s *HostSettings, r float64) { s.StorageHighWater = r }),
	"storagethinfactor": ratioField(1, func(s *HostSettings, r float64) { s.StorageThinFactor = r }),
	"pricefactor":       ratioField(maxPriceFactor, func(s *HostSettings, r float64) { s.PriceFactor = r }),
	"reserve":           parseReserve,

	"powermanagement": parsePowerMode,
	"idletime":        durationField(func(s *HostSettings, d time.Duration) { s.Power.IdleTime = d }),
	"minawake":        countField(func(s *HostSettings, n int) { s.Power.MinAwake = n }),
	"waketimeout":     parseWakeTimeout,
	"sleepwindow":     parseSleepWindow,
	"wattsidle":       ratioField(maxWatts, func(s *HostSettings, w float64) { s.Power.WattsIdle = w }),
	"wattsfull":       ratioField(maxWatts, func(s *HostSettings, w float64) { s.Power.WattsFull = w }),
	"energyprice":     ratioField(maxEnergyPrice, func(s *HostSettings, p float64) { s.Power.EnergyPrice = p }),
}

func countField(set func(*HostSettings, int)) func(json.RawMessage) (setter, error) {
	return func(raw json.RawMessage) (setter, error) {
		var n int
		if err := json.Unmarshal(raw, &n); err != nil || n < 0 {
			return nil, errors.New("want a whole number, not negative")
		}
		return func(s *HostSettings) { set(s, n) }, nil
	}
}

func ratioField(largest float64, set func(*HostSettings, float64)) func(json.RawMessage) (setter, error) {
	return func(raw json.RawMessage) (setter, error) {
		var r float64
		if err := json.Unmarshal(raw, &r); err != nil || r <= 0 || r > largest {
			return nil, fmt.Errorf("want a number above 0 and up to %g", largest)
		}
		return func(s *HostSettings) { set(s, r) }, nil
	}
}

// parseReserve parses the values that the field of NodeClasses has, too.
func parseReserve(raw json.RawMessage) (setter, error) {
	const none, largestHost = "None", "LargestHost"
	var reserve string
	if err := json.Unmarshal(raw, &reserve); err != nil || (reserve != none && reserve != largestHost) {
		return nil, fmt.Errorf("want %q or %q", none, largestHost)
	}
	return func(s *HostSettings) { s.KeepsReserve = reserve == largestHost }, nil
}

func parseReservedCPUs(raw json.RawMessage) (setter, error) {
	var ids []int
	if err := json.Unmarshal(raw, &ids); err != nil || (len(ids) > 0 && slices.Min(ids) < 0) {
		return nil, errors.New("want a list of CPU numbers such as [0, 1]")
	}
	set := cpuset.New(ids...)
	if set.Size() != len(ids) {
		return nil, errors.New("want each CPU number once")
	}
	return func(s *HostSettings) { s.ReservedCPUs = set }, nil
}

// plainQuantity rejects extreme exponents, which the quantity parser would process for
// minutes.
var plainQuantity = regexp.MustCompile(`^"?[0-9]{1,18}(\.[0-9]{1,9})?(k|[KMGTP]i?|[eE][0-9]{1,2})?"?$`)

// parseBytes parses a number of bytes or a quantity, up to one pebibyte.
func parseBytes(raw json.RawMessage) (int64, error) {
	var q resource.Quantity
	if !plainQuantity.Match(raw) || json.Unmarshal(raw, &q) != nil || q.Cmp(resource.MustParse("1Pi")) > 0 {
		return 0, errors.New(`want bytes or a quantity such as "4Gi", not negative`)
	}
	return q.Value(), nil
}

func parseSiblings(raw json.RawMessage) (setter, error) {
	var siblings string
	if err := json.Unmarshal(raw, &siblings); err != nil || !slices.Contains([]string{SiblingsSpread, SiblingsAdjacent}, siblings) {
		return nil, fmt.Errorf("want %q (the threads of a core are n and n + number of cores) or %q (n and n + 1)", SiblingsSpread, SiblingsAdjacent)
	}
	return func(s *HostSettings) { s.Topology.Siblings = siblings }, nil
}

// parseCells parses {"0": {"cpus": "0-7,32-39", "memsize": 68719476736}}. Earlier providers
// documented "memsize" as "memory", so both are accepted.
func parseCells(raw json.RawMessage) (setter, error) {
	var file map[string]struct {
		CPUs    string          `json:"cpus"`
		MemSize json.RawMessage `json:"memsize"`
		Memory  json.RawMessage `json:"memory"`
	}
	const want = `want {"0": {"cpus": "0-7", "memsize": bytes}}`
	if err := unmarshalStrict(raw, &file); err != nil {
		return nil, fmt.Errorf("%s (%w)", want, err)
	}
	cells := make(map[int]Cell, len(file))
	for _, key := range slices.Sorted(maps.Keys(file)) {
		id, err := strconv.Atoi(key)
		if err != nil || id < 0 {
			return nil, fmt.Errorf("%s (cell %q is not a number)", want, key)
		}
		cell := Cell{}
		if cell.CPUs, err = proxmox.ParseCPUs(file[key].CPUs); err != nil {
			return nil, fmt.Errorf("%s (cpus of cell %d: %w)", want, id, err)
		}
		size := file[key].MemSize
		if size == nil {
			size = file[key].Memory
		}
		if size != nil {
			if cell.MemoryBytes, err = parseBytes(size); err != nil {
				return nil, fmt.Errorf("cell %d: %w", id, err)
			}
		}
		for other := range cells {
			if both := cells[other].CPUs.Intersection(cell.CPUs); !both.IsEmpty() {
				return nil, fmt.Errorf("want each CPU in one cell (cells %d and %d both have %s)", min(id, other), max(id, other), both)
			}
		}
		cells[id] = cell
	}
	return func(s *HostSettings) { s.Topology.Cells = cells }, nil
}

// shorten limits a value to one short line for errors.
func shorten(raw json.RawMessage) string {
	text := strings.Join(strings.Fields(string(raw)), " ")
	if len(text) > 40 {
		text = strings.ToValidUTF8(text[:37], "") + "..."
	}
	return text
}
