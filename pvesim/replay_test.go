// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// record is one line of a recording of a running API.
type record struct {
	Suite       string          `json:"suite"`
	Seq         int             `json:"seq"`
	PVE         string          `json:"pve"`
	Tag         string          `json:"tag"`
	Who         string          `json:"who"`
	Method      string          `json:"method"`
	Path        string          `json:"path"`
	Params      json.RawMessage `json:"params"`
	ContentType string          `json:"content_type"`
	Status      *int            `json:"status"`
	Reason      string          `json:"reason"`
	Headers     map[string]string
	Body        json.RawMessage `json:"body"`
	Withheld    bool            `json:"withheld"`
	NotCompared bool            `json:"not_compared"`
	UPID        string          `json:"upid"`
}

const (
	// leastMatch is the minimum fraction of responses in scope that must match, mostOutOfScope the maximum fraction that may
	// be out of scope.
	leastMatch, mostOutOfScope = 0.97, 0.15
)

// referenceFile returns the path of a file of the reference material, which is not part of the repository.
func referenceFile(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("PVE_REFERENCE")
	if dir == "" {
		dir = filepath.Join("..", "..", "shared", "reference")
	}
	file := filepath.Join(dir, name)
	if _, err := os.Stat(file); err != nil {
		t.Skipf("NOT CHECKED against a running Proxmox VE: %v; set PVE_REFERENCE to the directory with the recordings", err)
	}
	return file
}

func readRecords(t *testing.T) []record {
	t.Helper()
	g := NewWithT(t)
	file := os.Getenv("PVE_TRACES")
	if file == "" {
		file = referenceFile(t, "pve-traces.jsonl")
	}
	raw, err := os.ReadFile(file)
	g.Expect(err).NotTo(HaveOccurred())
	var out []record
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var r record
		g.Expect(json.Unmarshal(lines.Bytes(), &r)).To(Succeed(), "%v", file)
		out = append(out, r)
	}
	return out
}

// tally counts matching and different responses and lists all differences.
type tally struct {
	mu              sync.Mutex
	matched, silent int
	outOfScope      map[string]int
	differences     []string
}

func (c *tally) add(r record, difference, outOfScope string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case outOfScope != "":
		c.outOfScope[outOfScope]++
	case difference == "":
		c.matched++
	default:
		c.differences = append(c.differences, fmt.Sprintf("%s %s #%d %s: %s %s %s\n%s", r.PVE, r.Suite, r.Seq, r.Tag, r.Method, r.Path, r.Params, difference))
	}
}

// TestReplayRecordings replays recordings of running 8.4 and 9.2 APIs in order and compares the responses.
func TestReplayRecordings(t *testing.T) {
	t.Parallel()
	records := readRecords(t)
	total := &tally{outOfScope: map[string]int{}}
	chains := map[string][]record{}
	for _, r := range records {
		key := r.PVE
		if r.Suite == "cluster-quorum-offline" {
			key += " cluster"
		}
		chains[key] = append(chains[key], r)
	}
	t.Cleanup(func() { report(t, total) }) // after the subtests
	for key, chain := range chains {
		runSimulated(t, key, func(t *testing.T, _ *WithT) { newReplay(t, key, total).run(chain) })
	}
}

func report(t *testing.T, c *tally) {
	t.Helper()
	g := NewWithT(t)
	out := 0
	for reason, n := range c.outOfScope {
		out += n
		t.Logf("out of scope, %d: %s", n, reason)
	}
	for _, d := range c.differences {
		t.Logf("DIFFERS %s", d)
	}
	inScope := c.matched + len(c.differences)
	t.Logf("%d responses matched, %d differ, %d out of scope, %d recorded without a response", c.matched, len(c.differences), out, c.silent)
	g.Expect(inScope).NotTo(BeZero(), "%d of %d responses match, want at least %.0f%%", c.matched, inScope, 100*leastMatch)
	g.Expect(float64(c.matched) / float64(inScope)).To(BeNumerically(">=", leastMatch))
	g.Expect(float64(out)).To(BeNumerically("<=", mostOutOfScope*float64(inScope+out)),
		"%d of %d responses are out of scope, want at most %.0f%%", out, inScope+out, 100*mostOutOfScope)
}

// replay sends one chain of suites to one simulator.
type replay struct {
	t       *testing.T
	c       *client
	tally   *tally
	host    string
	version string
	secrets map[string]string // by token
	upids   map[string]string // recorded -> ours
	sums    map[string]string // recorded checksum -> ours
	ticket  string
	csrf    string
	exits   map[string]string // exit status of recorded tasks
	held    func()
}

func newReplay(t *testing.T, chain string, total *tally) *replay {
	t.Helper()
	r := &replay{
		t: t, tally: total, host: "pve1", version: "8.4", secrets: map[string]string{"root@pam!oracle": rootTokenSecret},
		upids: map[string]string{}, sums: map[string]string{}, exits: map[string]string{},
	}
	if strings.HasPrefix(chain, "9") {
		r.host, r.version = "pve9a", "9.2"
	}
	// The fake clock starts in the year 2000. Some requests contain times that were in the past.
	time.Sleep(time.Until(time.Unix(recordedTime, 0)))
	scenario := r.scenario(strings.HasSuffix(chain, "cluster"))
	for _, u := range scenario.Users {
		for _, token := range u.Tokens {
			r.secrets[u.ID+"!"+token.ID] = token.Secret
		}
	}
	r.c = startSim(t, scenario, pvesim.Options{Guests: pvesim.UnresponsiveGuests{}, Web: recordedFiles{}})
	r.learnSums()
	r.login()
	return r
}

func (r *replay) login() {
	data := r.c.as("").ok("POST", "/access/ticket", "username", "root@pam", "password", pvesim.RootPassword).(map[string]any)
	r.ticket, r.csrf = data["ticket"].(string), data["CSRFPreventionToken"].(string)
}

// run sends the records in order; consecutive "parallel-" records are sent concurrently, as in the recording.
func (r *replay) run(records []record) {
	r.learnExits(records)
	for i := 0; i < len(records); {
		n := parallelRun(records[i:])
		r.before(records[i])
		group := records[i : i+n]
		responses := make([]response, n)
		var wg sync.WaitGroup
		for j, rec := range group {
			wg.Go(func() { responses[j] = r.send(rec) })
		}
		wg.Wait()
		matchOutcomes(group, responses)
		r.matchWinner(group, responses)
		for j, rec := range group {
			r.learn(rec, responses[j])
			r.judge(rec, responses[j])
		}
		i += n
	}
	if r.held != nil {
		r.held()
	}
}

// parallelRun returns the number of leading records that were sent concurrently.
func parallelRun(records []record) int {
	first := records[0]
	n := 1
	if !strings.HasPrefix(first.Tag, "parallel-") || strings.Contains(first.Tag, ":task-") {
		return n
	}
	for n < len(records) && records[n].Tag == first.Tag {
		n++
	}
	return n
}

// matchOutcomes assigns error responses to the records with an error: which of several equal requests fails is random.
func matchOutcomes(records []record, responses []response) {
	for i, rec := range records {
		if rec.Status == nil || *rec.Status == responses[i].Status {
			continue
		}
		for j := range records {
			if responses[j].Status == *rec.Status && records[j].Status != nil && *records[j].Status != *rec.Status {
				responses[i], responses[j] = responses[j], responses[i]
				break
			}
		}
	}
}

// matchWinner does the same for tasks: it assigns the successful task to the record whose task succeeded.
func (r *replay) matchWinner(records []record, responses []response) {
	if len(records) < 2 || records[0].Tag != "parallel-clones-same-newid" {
		return
	}
	for i, rec := range records {
		upid := firstUPID(string(rec.Body))
		if upid == "" || r.exits[upid] != "OK" {
			continue
		}
		for j, a := range responses {
			if ours := firstUPID(a.Raw); ours != "" && r.root().exit(ours) == "OK" {
				responses[i], responses[j] = responses[j], responses[i]
				return
			}
		}
	}
}

// learnExits reads the exit status of recorded tasks.
func (r *replay) learnExits(records []record) {
	for _, rec := range records {
		var body struct {
			Data struct {
				UPID string `json:"upid"`
				Exit string `json:"exitstatus"`
			} `json:"data"`
		}
		if strings.HasSuffix(rec.Tag, ":task-status") && json.Unmarshal(rec.Body, &body) == nil {
			r.exits[body.Data.UPID] = body.Data.Exit
		}
	}
}

// judge compares a response unless the recording has none or it is out of scope.
func (r *replay) judge(rec record, a response) {
	if rec.Withheld || rec.NotCompared || rec.Status == nil {
		r.tally.mu.Lock()
		r.tally.silent++
		r.tally.mu.Unlock()
		return
	}
	if reason := outOfScope(rec); reason != "" {
		r.tally.add(rec, "", reason)
		return
	}
	r.tally.add(rec, r.compare(rec, a), "")
}

// learn maps IDs in the recording to IDs of the simulator.
func (r *replay) learn(rec record, a response) {
	recorded := rec.UPID
	if recorded == "" {
		recorded = firstUPID(string(rec.Body))
	}
	if ours := firstUPID(a.Raw); recorded != "" && ours != "" && rec.Method != http.MethodGet {
		r.upids[recorded] = ours
	}
	if data, ok := a.Data.(map[string]any); ok && data["full-tokenid"] != nil {
		r.secrets[data["full-tokenid"].(string)] = data["value"].(string)
	}
}

var upidText = regexp.MustCompile(`UPID:[^"\s]*?:[^":\s]*:[^":\s]*:[^":\s]*:[^":\s]*:[^":\s]*:[^":\s]*:`)

func firstUPID(s string) string { return upidText.FindString(s) }
