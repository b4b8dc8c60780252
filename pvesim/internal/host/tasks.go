// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// isOwnTask reports whether the caller started a task. Users see the tasks of their tokens; tokens see only their own.
func isOwnTask(r *api.Request, u tasks.UPID) bool {
	user, _ := u.Owner()
	return u.User == r.Who.String() || (r.Who.Token == "" && user == r.Who.User)
}

// findTask returns the task in the path. It fails if another user started the task and the caller lacks priv.
func (th *taskHandlers) findTask(r *api.Request, priv string) (*tasks.Task, tasks.UPID, error) {
	text := r.Params.Values["upid"]
	u, ok := tasks.ParseUPID(text)
	if !ok {
		return nil, u, api.BadParam("upid", "unable to parse worker upid")
	}
	t := th.k.Tasks.Get(text)
	if t == nil || u.Host != r.Host {
		t = nil
	}
	if !isOwnTask(r, u) {
		if err := th.k.Require(r, "/nodes/"+r.Host, priv); err != nil {
			return nil, u, err
		}
	}
	return t, u, nil
}

func taskRow(u tasks.UPID) api.Row {
	user, token := u.Owner()
	out := api.Row{
		"upid": u.String(), "node": u.Host, "pid": u.PID, "pstart": u.PStart, "starttime": u.StartTime, "type": u.Type, "id": u.ID, "user": user,
	}
	api.SetNonEmpty(out, "tokenid", token)
	return out
}

func (th *taskHandlers) getTaskStatus(_ context.Context, r *api.Request) (api.Response, error) {
	t, u, err := th.findTask(r, "Sys.Audit")
	if err != nil {
		return api.Response{}, err
	}
	if t == nil {
		return api.Response{}, api.BadParam("upid", "no such task")
	}
	out := taskRow(u)
	s := t.State()
	out["status"] = "running"
	if !s.Running {
		out["status"], out["exitstatus"] = "stopped", s.Exit
	}
	return api.Response{Data: out}, nil
}

// getTaskLog returns the log of a task. Like Proxmox, it returns an object instead of a list if the log does not exist.
func (th *taskHandlers) getTaskLog(_ context.Context, r *api.Request) (api.Response, error) {
	t, _, err := th.findTask(r, "Sys.Audit")
	if err != nil {
		return api.Response{}, err
	}
	if t == nil {
		one := 1
		return api.Response{Data: api.Row{"n": 1, "t": "unable to open file - No such file or directory"}, Total: &one}, nil
	}
	lines := t.Lines()
	total := len(lines)
	start, limit := r.Int("start", 0), r.Int("limit", 50)
	rows := []api.Row{}
	for i, line := range lines {
		if i >= start && (limit == 0 || len(rows) < limit) {
			rows = append(rows, api.Row{"n": i + 1, "t": line})
		}
	}
	if total == 0 {
		rows, total = []api.Row{{"n": 1, "t": "no content"}}, 1
	}
	return api.Response{Data: rows, Total: &total}, nil
}

func (th *taskHandlers) deleteTask(ctx context.Context, r *api.Request) (api.Response, error) {
	t, _, err := th.findTask(r, "Sys.Modify")
	if err != nil {
		return api.Response{}, err
	}
	if t == nil {
		return api.Response{}, api.BadParam("upid", "no such task")
	}
	th.k.Tasks.Stop(ctx, t)
	return api.Response{}, nil
}

// taskFilter selects tasks of a list.
type taskFilter struct {
	source, vmid, typ, user string
	errors                  bool
	since, until            int64
	states                  []string
}

func (f taskFilter) matches(s tasks.State) bool {
	u := s.UPID
	if f.vmid != "" && u.ID != f.vmid || f.typ != "" && u.Type != f.typ {
		return false
	}
	return f.matchesState(s) && (len(f.states) == 0 || slices.Contains(f.states, exitKind(s)))
}

func (f taskFilter) matchesState(s tasks.State) bool {
	u := s.UPID
	switch {
	case f.source == "archive" && s.Running, f.source == "active" && !s.Running:
		return false
	case f.user != "" && !strings.Contains(strings.ToLower(u.User), strings.ToLower(f.user)):
		return false
	case f.errors && (s.Running || s.Exit == "OK"):
		return false
	case f.since != 0 && u.StartTime < f.since, f.until != 0 && u.StartTime > f.until:
		return false
	}
	return true
}

func exitKind(s tasks.State) string {
	switch {
	case s.Exit == "OK":
		return "ok"
	case strings.HasPrefix(s.Exit, "WARNINGS"):
		return "warning"
	case s.Exit == "unexpected status":
		return "unknown"
	default:
		return "error"
	}
}

// listedState returns the state of a task in lists, which show its end late on a busy host: when the process that
// started it noticed.
func (th *taskHandlers) listedState(t *tasks.Task) tasks.State {
	s := t.State()
	if s.Running {
		return s
	}
	th.k.Mu.Lock()
	defer th.k.Mu.Unlock()
	if h := th.k.Host(t.UPID.Host); h != nil && th.k.Clock.Now().Before(s.End.Add(th.k.Clock.Real(h.TaskListDelay))) {
		return tasks.State{UPID: s.UPID, Running: true}
	}
	return s
}

// getTasks lists the tasks of a host. By default it lists only finished tasks.
func (th *taskHandlers) getTasks(_ context.Context, r *api.Request) (api.Response, error) {
	f := taskFilter{
		source: cmp.Or(r.Params.Values["source"], "archive"), vmid: r.Params.Values["vmid"], typ: r.Params.Values["typefilter"],
		user: r.Params.Values["userfilter"], errors: r.Bool("errors"), since: int64(r.Int("since", 0)),
		until: int64(r.Int("until", 0)), states: schema.SplitList(r.Params.Values["statusfilter"]),
	}
	all := th.k.Access.Has(r.Who, "/nodes/"+r.Host, "Sys.Audit")
	start, limit := r.Int("start", 0), r.Int("limit", 50)
	rows, total := []api.Row{}, 0
	for _, t := range th.k.Tasks.List() {
		s := th.listedState(t)
		if t.UPID.Host != r.Host || !f.matches(s) || (!all && !isOwnTask(r, t.UPID)) {
			continue
		}
		total++
		if total <= start || (limit > 0 && len(rows) >= limit) {
			continue
		}
		out := taskRow(t.UPID)
		out["status"] = "RUNNING"
		if !s.Running {
			out["status"], out["endtime"] = s.Exit, s.End.Unix()
		}
		rows = append(rows, out)
	}
	return api.Response{Data: rows, Total: &total}, nil
}

// getClusterTasks lists the tasks that hosts broadcast: running tasks and the last 25 finished ones. Without Sys.Audit,
// Proxmox compares the user with the whole identity, so a token does not see its own tasks.
func (th *taskHandlers) getClusterTasks(_ context.Context, r *api.Request) (api.Response, error) {
	all := th.k.Access.Has(r.Who, "/", "Sys.Audit")
	rows := []api.Row{}
	finished := map[string]int{}
	for _, t := range th.k.Tasks.List() {
		user, token := t.UPID.Owner()
		if !all && user != r.Who.String() {
			continue
		}
		s := th.listedState(t)
		if !s.Running {
			if finished[t.UPID.Host]++; finished[t.UPID.Host] > 25 {
				continue
			}
		}
		out := api.Row{
			"upid": t.UPID.String(), "node": t.UPID.Host, "type": t.UPID.Type, "id": t.UPID.ID, "user": user, "starttime": t.UPID.StartTime, "saved": "0",
		}
		api.SetNonEmpty(out, "tokenid", token)
		if !s.Running {
			out["saved"], out["status"], out["endtime"] = "1", s.Exit, s.End.Unix()
		}
		rows = append(rows, out)
	}
	return api.Response{Data: rows}, nil
}
