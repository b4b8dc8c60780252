// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strings"
)

// path replaces recorded task IDs. It keeps unknown IDs: they have no task in the recording either.
func (r *replay) path(p string) string {
	decoded := mustUnescape(p)
	if recorded := firstUPID(decoded); recorded != "" {
		if ours := r.upids[recorded]; ours != "" {
			decoded = strings.ReplaceAll(decoded, recorded, ours)
		}
		head, query, _ := strings.Cut(decoded, "?")
		u := url.URL{Path: head, RawQuery: query}
		return u.String()
	}
	return p
}

func (r *replay) send(rec record) response {
	if rec.Method == "raw curl" {
		return r.curl(rec)
	}
	if strings.HasPrefix(rec.Tag, "upload") && strings.HasSuffix(rec.Path, "/upload") {
		return r.upload(rec)
	}
	if strings.HasSuffix(rec.Tag, ":task-status") {
		r.awaitTask(rec)
	}
	body, typ := r.body(rec)
	req, err := http.NewRequestWithContext(context.Background(), rec.Method, "https://"+r.c.sim.Host()+r.path(rec.Path), body)
	if err != nil {
		r.t.Error(err)
		return response{}
	}
	if typ != "" {
		req.Header.Set("Content-Type", typ)
	}
	return r.dispatch(rec, req)
}

const unknownSecret = "00000000-0000-0000-0000-000000000000"

// root returns a client of root@pam.
func (r *replay) root() *client { return r.c.as("root@pam!oracle=" + rootTokenSecret) }

// dispatch adds the credentials of the record and sends the request.
func (r *replay) dispatch(rec record, req *http.Request) response {
	c := r.c.as("")
	switch {
	case strings.HasPrefix(rec.Tag, "root-ticket:") || rec.Tag == "ticket-without-csrf":
		req.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: url.QueryEscape(r.ticket)})
		if rec.Tag != "ticket-without-csrf" {
			req.Header.Set("CSRFPreventionToken", r.csrf)
		}
	case rec.Tag == "auth-invalid-ticket":
		req.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: "PVE:root@pam:00000000::abc"})
	case rec.Tag == "auth-bad-secret":
		c = r.c.as(rec.Who + "=" + unknownSecret)
	case strings.Contains(rec.Who, "!"):
		c = r.c.as(rec.Who + "=" + cmp.Or(r.secrets[rec.Who], unknownSecret))
	case rec.Who != "none":
		req.Header.Set("Authorization", rec.Who)
	}
	a, err := c.try(req)
	if err != nil {
		a.Reason = err.Error()
	}
	return a
}

// awaitTask waits until the task has ended, as the recorder did.
func (r *replay) awaitTask(rec record) {
	if ours := r.upids[firstUPID(mustUnescape(rec.Path))]; ours != "" {
		r.root().exit(ours)
	}
}

func mustUnescape(p string) string {
	if u, err := url.PathUnescape(p); err == nil {
		return u
	}
	return p
}
