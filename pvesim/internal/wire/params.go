// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

// maxUpload is the maximum size of an upload.
const maxUpload = 4 << 30

// readParams returns the parameters of query and body; the query has precedence. A reply that is not nil ends the
// request.
func (s *Server) readParams(r *http.Request) (schema.Params, *api.Upload, *reply) {
	params := schema.Params{Values: map[string]string{}, Lists: map[string][]string{}}
	if (r.Method == http.MethodGet || r.Method == http.MethodDelete) && r.ContentLength > 0 {
		rep := textError(http.StatusNotImplemented, fmt.Sprintf("Unexpected content for method '%s'", r.Method))
		return params, nil, &rep
	}
	var upload *api.Upload
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		var rep *reply
		body := &watchedBody{ReadCloser: r.Body, conn: connection(r), timeout: s.StallTimeout}
		r.Body = body
		if upload, rep = s.readBody(r, params); rep != nil {
			rep.drop = rep.drop || body.stalled
			return params, nil, rep
		}
	}
	query := url.Values{}
	for _, pair := range strings.FieldsFunc(r.URL.RawQuery, func(c rune) bool { return c == '&' || c == ';' }) {
		addPair(query, pair)
	}
	setAll(params, query)
	delete(params.Values, "_dc")
	return params, upload, nil
}

// addPair parses a "key=value". Invalid escapes are kept unchanged.
func addPair(into url.Values, pair string) {
	k, v, _ := strings.Cut(pair, "=")
	unescape := func(s string) string {
		if u, err := url.QueryUnescape(s); err == nil {
			return u
		}
		return s
	}
	into.Add(unescape(k), unescape(v))
}

func setAll(p schema.Params, values url.Values) {
	for k, v := range values {
		delete(p.Values, k)
		delete(p.Lists, k)
		if len(v) == 1 {
			p.Values[k] = v[0]
		} else {
			p.Lists[k] = v
		}
	}
}

func (s *Server) readBody(r *http.Request, p schema.Params) (*api.Upload, *reply) {
	fail := func(rep reply) (*api.Upload, *reply) { return nil, &rep }
	header := r.Header.Get("Content-Type")
	typ, opts, err := mime.ParseMediaType(header)
	if err != nil {
		typ = strings.TrimSpace(strings.SplitN(header, ";", 2)[0])
	}
	if typ == "multipart/form-data" {
		return s.readMultipart(r, opts["boundary"], p)
	}
	switch typ {
	case "", "application/x-www-form-urlencoded", "application/json":
	default:
		return fail(textError(http.StatusVariantAlsoNegotiates, fmt.Sprintf("upload 'Content-Type '%s' not implemented", header)))
	}
	if r.ContentLength > maxBody {
		return fail(textError(http.StatusNotImplemented, "for data too large"))
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return fail(reply{drop: true})
	}
	if typ == "application/json" {
		if text := readJSON(body, p, s.perlLocation(s.Kernel.Version.JSONLine)); text != "" {
			return fail(textError(http.StatusInternalServerError, text+"\n"))
		}
		return nil, nil //nolint:nilnil // no upload and no error
	}
	form := url.Values{}
	for _, pair := range strings.FieldsFunc(string(body), func(c rune) bool { return c == '&' }) {
		addPair(form, pair)
	}
	setAll(p, form)
	return nil, nil //nolint:nilnil // no upload and no error
}

// perlLocation returns the location in Proxmox's server that ends error texts.
func (s *Server) perlLocation(line int) string {
	return fmt.Sprintf(" at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line %d.", line)
}

// readJSON parses an object of plain values. It returns the error text of Perl, or "".
func readJSON(body []byte, p schema.Params, where string) string {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var object map[string]any
	if err := dec.Decode(&object); err != nil {
		return jsonError(string(body)) + where
	}
	for k, v := range object {
		switch v := v.(type) {
		case []any:
			var list []string
			for _, x := range v {
				list = append(list, scalar(x))
			}
			p.Lists[k] = list
		case nil:
			return "unable to parse value of '" + k + "' - got undefined value"
		default:
			p.Values[k] = scalar(v)
		}
	}
	return ""
}

func scalar(v any) string {
	switch v := v.(type) {
	case bool:
		if v {
			return "1"
		}
		return "0"
	case string:
		return v
	default:
		return fmt.Sprint(v)
	}
}

// jsonError returns the error text of Perl's JSON module for the two common errors.
func jsonError(body string) string {
	trimmed := strings.TrimLeft(body, " \t\r\n")
	if rest, ok := strings.CutPrefix(trimmed, "{"); ok && !strings.HasPrefix(strings.TrimLeft(rest, " \t\r\n"), `"`) {
		return fmt.Sprintf(`'"' expected, at character offset %d (before "%s")`, len(body)-len(rest), cmp.Or(rest, "(end of string)"))
	}
	return fmt.Sprintf(`malformed JSON string, neither tag, array, object, number, string or atom, at character offset %d (before "%s")`,
		len(body)-len(trimmed), cmp.Or(trimmed, "(end of string)"))
}

// readMultipart parses an upload: fields first, then the file in the part "filename". Proxmox ignores parts after the
// file, so fields there count as missing.
func (s *Server) readMultipart(r *http.Request, boundary string, p schema.Params) (*api.Upload, *reply) {
	fail := func(text string) (*api.Upload, *reply) {
		rep := textError(http.StatusInternalServerError, text+"\n")
		return nil, &rep
	}
	reader := multipart.NewReader(r.Body, boundary)
	for {
		part, err := reader.NextRawPart()
		if err != nil {
			return fail("upload failed" + s.perlLocation(s.Kernel.Version.UploadLine))
		}
		data, err := io.ReadAll(io.LimitReader(part, maxUpload))
		if err != nil {
			return fail("upload failed" + s.perlLocation(s.Kernel.Version.UploadLine))
		}
		if part.FileName() == "" {
			if _, known := p.Values["checksum-algorithm"]; part.FormName() == "checksum" && !known {
				return nil, &reply{status: http.StatusBadRequest, reason: http.StatusText(http.StatusBadRequest)}
			}
			p.Values[part.FormName()] = string(data)
			continue
		}
		if part.FormName() != "filename" {
			return fail(fmt.Sprintf("wrong field name '%s' for file upload", part.FormName()))
		}
		p.Values["filename"] = part.FileName()
		var name [16]byte
		_, _ = rand.Read(name[:]) // never fails
		return &api.Upload{Name: part.FileName(), Data: data, Temp: "/var/tmp/pveupload-" + hex.EncodeToString(name[:])}, nil
	}
}

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
		body = compress(body)
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(rep.status)
	_, _ = w.Write(body) // a client that disconnected is not an error
}

// compressors are reused, because a new one allocates a megabyte.
var compressors = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // a valid level
	return z
}}

func compress(body []byte) []byte {
	var b bytes.Buffer
	z, _ := compressors.Get().(*gzip.Writer)
	defer compressors.Put(z)
	z.Reset(&b)
	_, _ = z.Write(body) // a buffer does not fail
	_ = z.Close()
	return b.Bytes()
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
