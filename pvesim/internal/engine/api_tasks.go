// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// fork starts a task for a request. Between the answer and the worker's first step a little time passes, which is why
// two clones to one VMID can both be accepted.
func (e *Engine) fork(r *Request, typ, id string, work tasks.Work) *tasks.Task {
	return e.Tasks.Start(r.host, typ, id, r.Who.String(), func(ctx context.Context, t *tasks.Task) error {
		if err := e.Clock.Sleep(ctx, forkTime); err != nil {
			return err
		}
		return work(ctx, t)
	})
}

func upid(t *tasks.Task) Response { return Response{Data: t.UPID.String()} }

// awaitBriefly answers null instead of a task id if the task ends within the number of seconds that the caller gave.
func (e *Engine) awaitBriefly(ctx context.Context, r *Request, t *tasks.Task, param string) (Response, error) {
	delay := r.integer(param, 0)
	if delay <= 0 {
		return upid(t), nil
	}
	timer := time.NewTimer(e.Clock.Real(time.Duration(delay) * time.Second))
	defer timer.Stop()
	select {
	case <-t.Done():
		if s := t.State(); s.Exit != "OK" && !strings.HasPrefix(s.Exit, "WARNINGS") {
			return Response{}, failf("%s", s.Exit)
		}
		return Response{}, nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return upid(t), nil
}

// ownTask tells whether the caller started a task: a user sees the tasks of its tokens, a token only its own.
func ownTask(r *Request, u tasks.UPID) bool {
	user, _ := u.Owner()
	return u.User == r.Who.String() || (r.Who.Token == "" && user == r.Who.User)
}

// findTask resolves the id in the path and checks who may look; priv is what strangers need.
func (e *Engine) findTask(r *Request, priv string) (*tasks.Task, tasks.UPID, error) {
	text := r.Params.Values["upid"]
	u, ok := tasks.ParseUPID(text)
	if !ok {
		return nil, u, badParam("upid", "unable to parse worker upid")
	}
	t := e.Tasks.Get(text)
	if t == nil || u.Host != r.host {
		t = nil
	}
	if !ownTask(r, u) {
		if err := e.need(r, "/nodes/"+r.host, priv); err != nil {
			return nil, u, err
		}
	}
	return t, u, nil
}

func taskRow(u tasks.UPID) row {
	user, token := u.Owner()
	out := row{
		"upid": u.String(), "node": u.Host, "pid": u.PID, "pstart": u.PStart, "starttime": u.StartTime, "type": u.Type, "id": u.ID, "user": user,
	}
	if token != "" {
		out["tokenid"] = token
	}
	return out
}

func (e *Engine) getTaskStatus(_ context.Context, r *Request) (Response, error) {
	t, u, err := e.findTask(r, "Sys.Audit")
	if err != nil {
		return Response{}, err
	}
	if t == nil {
		return Response{}, badParam("upid", "no such task")
	}
	out := taskRow(u)
	s := t.State()
	out["status"] = "running"
	if !s.Running {
		out["status"], out["exitstatus"] = "stopped", s.Exit
	}
	return Response{Data: out}, nil
}

func (e *Engine) getTaskIndex(context.Context, *Request) (Response, error) {
	return Response{Data: []row{{"name": "log"}, {"name": "status"}}}, nil
}

// getTaskLog answers an object instead of a list when the log does not exist, as Proxmox does.
func (e *Engine) getTaskLog(_ context.Context, r *Request) (Response, error) {
	t, _, err := e.findTask(r, "Sys.Audit")
	if err != nil {
		return Response{}, err
	}
	if t == nil {
		return Response{Data: row{"n": 1, "t": "unable to open file - No such file or directory"}}, nil
	}
	lines := t.Lines()
	total := len(lines)
	start, limit := r.integer("start", 0), r.integer("limit", 50)
	rows := []row{}
	for i, line := range lines {
		if i >= start && (limit == 0 || len(rows) < limit) {
			rows = append(rows, row{"n": i + 1, "t": line})
		}
	}
	if total == 0 {
		rows, total = []row{{"n": 1, "t": "no content"}}, 1
	}
	return Response{Data: rows, Total: &total}, nil
}

func (e *Engine) deleteTask(ctx context.Context, r *Request) (Response, error) {
	t, _, err := e.findTask(r, "Sys.Modify")
	if err != nil {
		return Response{}, err
	}
	if t == nil {
		return Response{}, badParam("upid", "no such task")
	}
	e.Tasks.Stop(ctx, t)
	return Response{}, nil
}

// taskFilter is what a list of tasks is narrowed by.
type taskFilter struct {
	source, vmid, typ, user string
	errors                  bool
	since, until            int64
	states                  []string
}

func (f taskFilter) admits(s tasks.State) bool {
	u := s.UPID
	if f.vmid != "" && u.ID != f.vmid || f.typ != "" && u.Type != f.typ {
		return false
	}
	return f.admitsState(s) && (len(f.states) == 0 || slices.Contains(f.states, exitKind(s)))
}

func (f taskFilter) admitsState(s tasks.State) bool {
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

// getTasks lists the tasks of a host: finished ones only, unless the caller asks for more.
func (e *Engine) getTasks(_ context.Context, r *Request) (Response, error) {
	f := taskFilter{
		source: cmp.Or(r.Params.Values["source"], "archive"), vmid: r.Params.Values["vmid"], typ: r.Params.Values["typefilter"],
		user: r.Params.Values["userfilter"], errors: r.on("errors"), since: int64(r.integer("since", 0)),
		until: int64(r.integer("until", 0)), states: schema.SplitList(r.Params.Values["statusfilter"]),
	}
	all := e.Access.Has(r.Who, "/nodes/"+r.host, "Sys.Audit")
	start, limit := r.integer("start", 0), r.integer("limit", 50)
	rows, total := []row{}, 0
	for _, t := range e.Tasks.List() {
		s := t.State()
		if t.UPID.Host != r.host || !f.admits(s) || (!all && !ownTask(r, t.UPID)) {
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
	return Response{Data: rows, Total: &total}, nil
}

// getClusterTasks is the list that hosts broadcast to each other: running tasks and the last 25 finished ones. Without
// Sys.Audit it compares the bare user with the whole identity, so a token does not even see its own tasks.
func (e *Engine) getClusterTasks(_ context.Context, r *Request) (Response, error) {
	all := e.Access.Has(r.Who, "/", "Sys.Audit")
	rows := []row{}
	finished := map[string]int{}
	for _, t := range e.Tasks.List() {
		user, token := t.UPID.Owner()
		if !all && user != r.Who.String() {
			continue
		}
		s := t.State()
		if !s.Running {
			if finished[t.UPID.Host]++; finished[t.UPID.Host] > 25 {
				continue
			}
		}
		out := row{
			"upid": t.UPID.String(), "node": t.UPID.Host, "type": t.UPID.Type, "id": t.UPID.ID, "user": user, "starttime": t.UPID.StartTime, "saved": "0",
		}
		if token != "" {
			out["tokenid"] = token
		}
		if !s.Running {
			out["saved"], out["status"], out["endtime"] = "1", s.Exit, s.End.Unix()
		}
		rows = append(rows, out)
	}
	return Response{Data: rows}, nil
}
