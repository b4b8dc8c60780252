// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// API is a small Proxmox API client. It is independent of the controller's client, so tests do
// not check the controller with its own code.
type API struct {
	base string
	http *http.Client
	// login is added to every request.
	login http.Header
	// vmids selects the guests whose configuration is read. A user's cluster may have many
	// unrelated guests.
	vmids func(vmid int) bool
}

// NewAPI returns a client for a cloud config entry. It uses the first of several URLs. It
// fails without a URL or with an invalid CA.
func NewAPI(c Cluster) (*API, error) {
	trust, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	if len(c.URLs) == 0 {
		return nil, errors.New("creating Proxmox client: no URL")
	}
	a := &API{
		base:  strings.TrimSuffix(c.URLs[0], "/"),
		login: http.Header{},
		vmids: func(int) bool { return true },
		http: &http.Client{
			Timeout: 30 * time.Second,
			// pveproxy closes idle connections after five seconds. A shorter timeout avoids
			// sending a request on a connection that is being closed.
			Transport: &http.Transport{TLSClientConfig: trust, IdleConnTimeout: 2 * time.Second},
		},
	}
	if c.TokenID != "" {
		a.login.Set("Authorization", "PVEAPIToken="+c.TokenID+"="+c.TokenSecret)
	}
	return a, nil
}

// APIError is a response with a status other than 200.
type APIError struct {
	Status int
	Reason string
}

func (e *APIError) Error() string { return e.Reason }

// Call sends one request and decodes the data of the response into into, unless it is nil. It
// returns an APIError for a status other than 200.
func (a *API) Call(ctx context.Context, method, path string, params url.Values, into any) error {
	var body io.Reader
	if method == http.MethodGet || method == http.MethodDelete {
		if len(params) > 0 {
			path += "?" + params.Encode()
		}
	} else {
		body = strings.NewReader(params.Encode())
	}
	request, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	maps.Copy(request.Header, a.login)
	response, err := a.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return &APIError{Status: response.StatusCode, Reason: fmt.Sprintf("%s %s: %s", method, path, response.Status)}
	}
	if into == nil {
		return nil
	}
	answer := struct{ Data any }{into}
	if err := json.Unmarshal(content, &answer); err != nil {
		return fmt.Errorf("decoding response to %s %s: %w", method, path, err)
	}
	return nil
}

// Run sends a request that starts a task and waits until the task ends. It fails if the task
// fails.
func (a *API) Run(ctx context.Context, method, path string, params url.Values) error {
	var upid string
	if err := a.Call(ctx, method, path, params, &upid); err != nil {
		return err
	}
	host, ok := taskHost(upid)
	if !ok {
		return fmt.Errorf("%s %s returned %q, want a task ID", method, path, upid)
	}
	for {
		var status struct{ Status, Exitstatus string }
		if err := a.Call(ctx, http.MethodGet, "/nodes/"+host+"/tasks/"+url.PathEscape(upid)+"/status", nil, &status); err != nil {
			return err
		}
		if status.Status == "stopped" {
			if status.Exitstatus != "OK" {
				return fmt.Errorf("%s %s: %s", method, path, status.Exitstatus)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// taskHost returns the second field of UPID:host:...
func taskHost(upid string) (string, bool) {
	fields := strings.Split(upid, ":")
	if len(fields) < 8 || fields[0] != "UPID" {
		return "", false
	}
	return fields[1], true
}

// Guest is a VM as its host reports it, which is more current than /cluster/resources.
type Guest struct {
	Host     string
	VMID     int
	Name     string
	Status   string
	Template bool
	Config   map[string]any
}

// Notes returns the VM's notes.
func (g Guest) Notes() string {
	text, _ := g.Config["description"].(string)
	return text
}

// Hosts returns the cluster's hosts by name; the value is true for hosts that are online.
func (a *API) Hosts(ctx context.Context) (map[string]bool, error) {
	var rows []struct{ Node, Status string }
	if err := a.Call(ctx, http.MethodGet, "/nodes", nil, &rows); err != nil {
		return nil, err
	}
	hosts := map[string]bool{}
	for _, row := range rows {
		hosts[row.Node] = row.Status == "online"
	}
	return hosts, nil
}

// eachOnline calls do for each online host in order, until it fails.
func (a *API) eachOnline(ctx context.Context, do func(host string) error) error {
	hosts, err := a.Hosts(ctx)
	for _, host := range slices.Sorted(maps.Keys(hosts)) {
		if err == nil && hosts[host] {
			err = do(host)
		}
	}
	return err
}

// Guests returns the guests of all online hosts with their configurations.
func (a *API) Guests(ctx context.Context) (out []Guest, err error) {
	err = a.eachOnline(ctx, func(host string) error {
		var rows []struct {
			VMID     int
			Name     string
			Status   string
			Template int
		}
		if err := a.Call(ctx, http.MethodGet, "/nodes/"+host+"/qemu", nil, &rows); err != nil {
			return err
		}
		for _, row := range rows {
			if !a.vmids(row.VMID) {
				continue
			}
			guest := Guest{Host: host, VMID: row.VMID, Name: row.Name, Status: row.Status, Template: row.Template == 1}
			err := a.Call(ctx, http.MethodGet, fmt.Sprintf("/nodes/%s/qemu/%d/config", host, row.VMID), url.Values{"current": {"1"}}, &guest.Config)
			if err != nil && !isNotFound(err) {
				return err
			}
			out = append(out, guest)
		}
		return nil
	})
	return out, err
}

// VMOf returns the VM of a NodeClaim.
func (a *API) VMOf(ctx context.Context, claim *karpv1.NodeClaim) (Guest, error) {
	id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return Guest{}, err
	}
	guests, err := a.Guests(ctx)
	if n := slices.IndexFunc(guests, func(g Guest) bool { return g.VMID == id.VMID }); n >= 0 {
		return guests[n], err
	}
	return Guest{}, errors.Join(err, fmt.Errorf("VM %d does not exist", id.VMID))
}

// isNotFound reports whether a request failed because the VM or volume does not exist, for
// example because it was deleted after it was listed.
func isNotFound(err error) bool {
	var failed *APIError
	return errors.As(err, &failed) && strings.Contains(failed.Reason, "does not exist")
}

// Volume is a disk or an image on a storage.
type Volume struct{ Host, ID string }

// Volumes returns the volumes of all active storages of all online hosts.
func (a *API) Volumes(ctx context.Context) (out []Volume, err error) {
	err = a.eachOnline(ctx, func(host string) error {
		var storages []struct {
			Storage         string
			Enabled, Active int
		}
		if err := a.Call(ctx, http.MethodGet, "/nodes/"+host+"/storage", nil, &storages); err != nil {
			return err
		}
		for _, storage := range storages {
			var rows []struct{ Volid string }
			if storage.Enabled == 0 || storage.Active == 0 {
				continue // Proxmox cannot list its content
			}
			if err := a.Call(ctx, http.MethodGet, "/nodes/"+host+"/storage/"+storage.Storage+"/content", nil, &rows); err != nil {
				return err
			}
			for _, row := range rows {
				out = append(out, Volume{Host: host, ID: row.Volid})
			}
		}
		return nil
	})
	return out, err
}

// Tasks lists the latest tasks of the cluster, for messages.
func (a *API) Tasks(ctx context.Context) string {
	var rows []struct {
		UPID, Status       string
		Starttime, Endtime int64
	}
	if err := a.Call(ctx, http.MethodGet, "/cluster/tasks", nil, &rows); err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&out, "%s %s\n", row.UPID, row.Status)
	}
	return out.String()
}

// power runs a power command of a VM, such as stop or reboot.
func (a *API) power(ctx context.Context, guest Guest, verb string, params url.Values) error {
	return a.Run(ctx, http.MethodPost, fmt.Sprintf("/nodes/%s/qemu/%d/status/%s", guest.Host, guest.VMID, verb), params)
}

// Stop stops a VM without shutting it down.
func (a *API) Stop(ctx context.Context, guest Guest) error {
	return a.power(ctx, guest, "stop", nil)
}

// Start starts a guest.
func (a *API) Start(ctx context.Context, guest Guest) error {
	return a.power(ctx, guest, "start", nil)
}

// Reset restarts a VM without shutting it down.
func (a *API) Reset(ctx context.Context, guest Guest) error {
	return a.power(ctx, guest, "reset", nil)
}

// Reboot asks the guest to restart.
func (a *API) Reboot(ctx context.Context, guest Guest) error {
	return a.power(ctx, guest, "reboot", url.Values{"timeout": {"600"}})
}

// Destroy stops and destroys a VM with purge, without checking who owns it.
func (a *API) Destroy(ctx context.Context, guest Guest) error {
	for {
		if guest.Status == "running" {
			if err := a.Stop(ctx, guest); err != nil {
				return err
			}
		}
		err := a.Run(ctx, http.MethodDelete, fmt.Sprintf("/nodes/%s/qemu/%d", guest.Host, guest.VMID), url.Values{"purge": {"1"}})
		if err == nil || !strings.Contains(err.Error(), "is running") {
			return err
		}
		guest.Status = "running" // the controller has started it again
	}
}
