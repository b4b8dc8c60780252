// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

func marshal(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return []byte(`{"data":null}`) // only values that the engine made itself get here
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

func success(resp api.Response, format string) reply {
	body := map[string]any{"data": resp.Data}
	if resp.Total != nil {
		body["total"] = *resp.Total
	}
	if format == "extjs" {
		body["success"] = 1
	}
	return reply{status: http.StatusOK, reason: "OK", typ: typeJSON, body: marshal(body)}
}

func errorReply(e *api.Error, format string) reply {
	rep := reply{status: e.Status, reason: e.Reason()}
	if e.Bare {
		return rep
	}
	message := e.Message
	if !e.NoBreak && !strings.HasSuffix(message, "\n") {
		message += "\n"
	}
	body := map[string]any{"data": nil, "message": message}
	if len(e.Errors) > 0 {
		body["errors"] = e.Errors
	}
	if format == "extjs" {
		// The format of the web interface has status 200 also for errors.
		body["success"], body["status"] = 0, e.Status
		rep.status, rep.reason = http.StatusOK, "OK"
	}
	rep.typ, rep.body = typeJSON, marshal(body)
	return rep
}

// textError returns an error of the HTTP layer.
func textError(status int, message string) reply {
	first, _, _ := strings.Cut(message, "\n")
	return reply{status: status, reason: first, body: []byte(message)}
}

func (rep reply) write(w http.ResponseWriter, r *http.Request) {
	if rep.status >= http.StatusMovedPermanently {
		rep.writeRaw(w, r)
		return
	}
	h := w.Header()
	h.Set("Server", "pve-api-daemon/3.0")
	h.Set("Cache-Control", "max-age=0")
	h.Set("Pragma", "no-cache")
	h.Set("Content-Type", rep.typ)
	if r.ProtoAtLeast(1, 1) && !r.Close {
		h.Set("Connection", "Keep-Alive")
	}
	body := rep.body
	if len(body) > 1024 && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		var b bytes.Buffer
		z, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed) // a valid level
		_, _ = z.Write(body)                            // a buffer does not fail
		_ = z.Close()
		body = b.Bytes()
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(rep.status)
	_, _ = w.Write(body) // a client that disconnected is not an error
}

// writeRaw writes the status line itself, because net/http does not support reason phrases, and closes the connection,
// as Proxmox does after errors.
func (rep reply) writeRaw(w http.ResponseWriter, r *http.Request) {
	// A client that still sends its body must not receive a reset instead of the response.
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 64<<20))
	h, ok := w.(http.Hijacker)
	if !ok {
		http.Error(w, rep.reason, rep.status)
		return
	}
	conn, _, err := h.Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	reason := strings.NewReplacer("\r", " ", "\n", " ").Replace(rep.reason)
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", rep.status, reason)
	fmt.Fprintf(&b, "Cache-Control: max-age=0\r\nConnection: close\r\nDate: %s\r\nPragma: no-cache\r\nServer: pve-api-daemon/3.0\r\n",
		time.Now().UTC().Format(http.TimeFormat))
	for k, v := range rep.header {
		fmt.Fprintf(&b, "%s: %s\r\n", k, v)
	}
	if rep.typ != "" {
		fmt.Fprintf(&b, "Content-Type: %s\r\n", rep.typ)
	}
	fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n", len(rep.body))
	if r.Method != http.MethodHead {
		b.Write(rep.body)
	}
	_ = conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
	_, _ = conn.Write(b.Bytes())
}
