// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// readRecords reads the recordings, which are not part of the repository.
func readRecords(t *testing.T) (out []record) {
	t.Helper()
	g := NewWithT(t)
	dir := cmp.Or(os.Getenv("PVE_REFERENCE"), filepath.Join("..", "..", "shared", "reference"))
	traces := os.Getenv("PVE_TRACES")
	file, err := os.Open(cmp.Or(traces, filepath.Join(dir, "pve-traces.jsonl")))
	if traces == "" && errors.Is(err, fs.ErrNotExist) {
		t.Skipf("NOT CHECKED against a running Proxmox VE: %v; set PVE_REFERENCE to the directory with the recordings", err)
	}
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = file.Close() }()
	for lines := json.NewDecoder(file); lines.More(); {
		var r record
		g.Expect(lines.Decode(&r)).To(Succeed(), "%v", file.Name())
		out = append(out, r)
	}
	return out
}

// TestReplayRecordings replays recordings of running 8.4 and 9.2 APIs in order and compares the responses.
func TestReplayRecordings(t *testing.T) {
	t.Parallel()
	records := readRecords(t)
	chains := map[string][]record{}
	for _, r := range records {
		key := r.PVE
		if r.Suite == "cluster-quorum-offline" {
			key += " cluster"
		}
		chains[key] = append(chains[key], r)
	}
	for key, chain := range chains {
		runSimulated(t, key, func(t *testing.T, _ *WithT) { newReplay(t, key).run(chain) })
	}
}

// replay sends one chain of suites to one simulator.
type replay struct {
	t       *testing.T
	c       *client
	host    string
	version string
	secrets map[string]string // by token
	upids   map[string]string // recorded -> ours
	ticket  string
	csrf    string
	exits   map[string]string // exit status of recorded tasks
	held    func()
	// compared is the number of responses that were compared.
	compared int
}

func newReplay(t *testing.T, chain string) *replay {
	t.Helper()
	r := &replay{
		t: t, host: "pve1", version: "8.4", secrets: map[string]string{"root@pam!oracle": rootTokenSecret},
		upids: map[string]string{}, exits: map[string]string{},
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
		if n > 1 {
			r.matchOutcomes(group, responses)
		}
		for j, rec := range group {
			r.learn(rec, responses[j])
			r.judge(rec, responses[j])
		}
		i += n
	}
	if r.held != nil {
		r.held()
	}
	r.t.Logf("compared %d of %d responses", r.compared, len(records))
	NewWithT(r.t).Expect(r.compared).NotTo(BeZero())
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

// matchOutcomes assigns responses to the records with the same outcome: which of several equal requests fails is random, and
// so is which of several clones to one VMID succeeds.
func (r *replay) matchOutcomes(records []record, responses []response) {
	for i, rec := range records {
		j := slices.IndexFunc(responses[i:], func(a response) bool {
			if rec.Tag != "parallel-clones-same-newid" || rec.Status == nil || *rec.Status >= 400 || a.Status >= 400 {
				return rec.Status == nil || *rec.Status == a.Status
			}
			return (r.exits[firstUPID(string(rec.Body))] == "OK") == (r.root().exit(firstUPID(a.Raw)) == "OK")
		})
		if j > 0 {
			responses[i], responses[i+j] = responses[i+j], responses[i]
		}
	}
}

// learnExits reads the exit status of recorded tasks.
func (r *replay) learnExits(records []record) {
	for _, rec := range records {
		var body struct {
			Data struct{ UPID, ExitStatus string }
		}
		if strings.HasSuffix(rec.Tag, ":task-status") && json.Unmarshal(rec.Body, &body) == nil {
			r.exits[body.Data.UPID] = body.Data.ExitStatus
		}
	}
}

// judge compares a response unless the recording has none or it is out of scope.
func (r *replay) judge(rec record, a response) {
	if rec.Withheld || rec.NotCompared || rec.Status == nil || outOfScope(rec) {
		return
	}
	r.compared++
	if difference := compare(rec, a); difference != "" {
		r.t.Errorf("%s #%d %s: %s %s %s\n%s", rec.Suite, rec.Seq, rec.Tag, rec.Method, rec.Path, rec.Params, difference)
	}
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
