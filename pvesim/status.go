// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/engine"
)

//go:embed status.html
var statusPage string

// Limits of the page; the admin API returns all entries.
const shownGuests, shownTasks = 500, 40

var statusTemplate = template.Must(template.New("status").Funcs(template.FuncMap{"size": humanSize}).Parse(statusPage))

// statusView is the data of the page.
type statusView struct {
	engine.Overview
	URL        string
	Requests   int
	MoreGuests int
	Faults     []faultView
	Consoles   bool // the consoles of guests can be read
}

type faultView struct {
	ID, Matched, Hits int
	Where, What       string
}

// statusRoutes serves the page that shows hosts, VMs, tasks and faults.
func (s *Simulator) statusRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		var page bytes.Buffer
		if err := statusTemplate.Execute(&page, s.statusView()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = page.WriteTo(w) // a disconnected client is not an error
	})
	if guests, ok := s.options.Guests.(consoleReader); ok {
		mux.HandleFunc("GET /guests/{vmid}/console", func(w http.ResponseWriter, r *http.Request) {
			vmid, err := strconv.Atoi(r.PathValue("vmid"))
			if err != nil {
				respond(w, err)
				return
			}
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = io.WriteString(w, guests.Console(vmid)) // a disconnected client is not an error
		})
	}
}

// consoleReader is a runtime that records the output of the guests' consoles.
type consoleReader interface{ Console(vmid int) string }

func (s *Simulator) statusView() statusView {
	v := statusView{Overview: s.engine.Overview(shownTasks), URL: s.URL()}
	_, v.Consoles = s.options.Guests.(consoleReader)
	if v.MoreGuests = len(v.Guests) - shownGuests; v.MoreGuests > 0 {
		v.Guests = v.Guests[:shownGuests]
	} else {
		v.MoreGuests = 0
	}
	for _, n := range s.RequestCounts() {
		v.Requests += n
	}
	for _, f := range s.Faults() {
		v.Faults = append(v.Faults, faultView{ID: f.ID, Matched: f.Matched, Hits: f.Hits, Where: f.where(), What: f.what()})
	}
	return v
}

// where describes the calls or tasks that a rule matches.
func (f Fault) where() string {
	if f.Task != "" {
		return strings.TrimSpace("task " + f.Task + " " + f.TaskID)
	}
	if f.Method == "" && f.Path == "" {
		return "every call"
	}
	return strings.TrimSpace(f.Method + " " + f.Path)
}

// what describes the effect of a rule.
func (f Fault) what() string {
	var parts []string
	add := func(when bool, format string, args ...any) {
		if when {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(f.Delay > 0, "waits %v", time.Duration(f.Delay))
	add(f.Status != 0, "answers %s", strings.TrimSpace(fmt.Sprint(f.Status, " ", f.Message)))
	add(f.DropBefore, "drops the connection before the effect")
	add(f.DropAfter, "drops the connection after the effect")
	add(f.Hang, "hangs")
	add(f.Fail != "", "fails with %q", f.Fail)
	add(f.Skip > 0, "after %d", f.Skip)
	add(f.Count > 0, "%d times", f.Count)
	add(f.Probability > 0, "with probability %v", f.Probability)
	return strings.Join(parts, ", ")
}

func humanSize(n int64) string {
	f, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for f >= 1024 && i < len(units)-1 {
		f /= 1024
		i++
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") + " " + units[i]
}
