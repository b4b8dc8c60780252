// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// roundTripper responds to every request with the same status and body.
type roundTripper struct {
	status int
	reason string
	body   string
}

func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: r.status, Status: strconv.Itoa(r.status) + " " + r.reason, Request: req,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(r.body)),
	}, nil
}

// clientWith returns a client whose every call gets that response.
func clientWith(t *testing.T, r roundTripper) Client {
	t.Helper()
	created, err := New(ClusterConfig{
		Region: "dc1", URLs: []string{"https://pve1:8006"}, TokenID: "a@pve!b", TokenSecret: "11111111-2222-3333-4444-555555555555",
	}, Options{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	c, _ := created.(*client)
	c.clusterClient.hosts.next = r
	return c
}

const someUPID = UPID("UPID:pve1:00003790:00053A7E:6AF9038E:qmclone:9001:a@pve!b:")

// calls are all calls of the client that decode a response, by name.
var calls = map[string]func(context.Context, Client) (any, error){
	"Version":            func(ctx context.Context, c Client) (any, error) { return c.Version(ctx) },
	"Resources":          func(ctx context.Context, c Client) (any, error) { return c.Resources(ctx) },
	"Options":            func(ctx context.Context, c Client) (any, error) { return c.Options(ctx) },
	"Maintenance":        func(ctx context.Context, c Client) (any, error) { return c.Maintenance(ctx) },
	"PCIMappings":        func(ctx context.Context, c Client) (any, error) { return c.PCIMappings(ctx) },
	"DirectoryMappings":  func(ctx context.Context, c Client) (any, error) { return c.DirectoryMappings(ctx) },
	"Permissions":        func(ctx context.Context, c Client) (any, error) { return c.Permissions(ctx) },
	"HasAccess":          func(ctx context.Context, c Client) (any, error) { return c.HasAccess(ctx, "/vms") },
	"Roles":              func(ctx context.Context, c Client) (any, error) { return c.Roles(ctx) },
	"PoolExists":         func(ctx context.Context, c Client) (any, error) { return c.PoolExists(ctx, "p") },
	"HostInfo":           func(ctx context.Context, c Client) (any, error) { return c.HostInfo(ctx, "pve1") },
	"HostNotes":          func(ctx context.Context, c Client) (any, error) { return c.HostNotes(ctx, "pve1") },
	"Bridges":            func(ctx context.Context, c Client) (any, error) { return c.Bridges(ctx, "pve1") },
	"InterfaceAddresses": func(ctx context.Context, c Client) (any, error) { return c.InterfaceAddresses(ctx, "pve1") },
	"VNets":              func(ctx context.Context, c Client) (any, error) { return c.VNets(ctx) },
	"SDNAddresses":       func(ctx context.Context, c Client) (any, error) { return c.SDNAddresses(ctx) },
	"SecurityGroups":     func(ctx context.Context, c Client) (any, error) { return c.SecurityGroups(ctx) },
	"VMConfig":           func(ctx context.Context, c Client) (any, error) { return c.VMConfig(ctx, "pve1", 100) },
	"ContainerConfig":    func(ctx context.Context, c Client) (any, error) { return c.ContainerConfig(ctx, "pve1", 100) },
	"GuestAddresses":     func(ctx context.Context, c Client) (any, error) { return c.GuestAddresses(ctx, "pve1", 100) },
	"GuestFile":          func(ctx context.Context, c Client) (any, error) { return c.GuestFile(ctx, "pve1", 100, "/run/a") },
	"VMStatus":           func(ctx context.Context, c Client) (any, error) { return c.VMStatus(ctx, "pve1", 100) },
	"Volumes":            func(ctx context.Context, c Client) (any, error) { return c.Volumes(ctx, "pve1", "local", "iso") },
	"CreateVolume": func(ctx context.Context, c Client) (any, error) {
		return "", c.CreateVolume(ctx, "pve1", NewVolume{ID: "local:vm-100-disk-0", VMID: 100, GiB: 1})
	},
	"VolumePath": func(ctx context.Context, c Client) (any, error) { return c.VolumePath(ctx, "pve1", "local:iso/a.iso") },
	"Task":       func(ctx context.Context, c Client) (any, error) { return c.Task(ctx, someUPID) },
	"TaskLog":    func(ctx context.Context, c Client) (any, error) { return c.TaskLog(ctx, someUPID) },
	"RecentTasks": func(ctx context.Context, c Client) (any, error) {
		return c.RecentTasks(ctx, "pve1", "a@pve", time.Unix(0, 0))
	},
	"RunningTasks": func(ctx context.Context, c Client) (any, error) { return c.RunningTasks(ctx, "pve1", "qmclone") },
	"StartVM":      func(ctx context.Context, c Client) (any, error) { return c.StartVM(ctx, "pve1", 100) },
	"DeleteVolume": func(ctx context.Context, c Client) (any, error) {
		return c.DeleteVolume(ctx, "pve1", "local:iso/a.iso")
	},
}

// Any server may respond with anything, to any call. Every error has one kind and one line,
// the result of a failed call is empty, and reading the same response again returns the same.
func FuzzResponses(f *testing.F) {
	for _, body := range []string{
		`{"data":null}`, `{"data":[]}`, `{"data":{}}`, `{"data":"UPID:pve1:00003790:00053A7E:6AF9038E:qmclone:9001:a@pve!b:"}`,
		`{"data":[{"type":"node","node":"pve1","status":"online","maxcpu":8,"maxmem":"16777216000","cpu":0.03},{"type":"qemu","vmid":100,"node":"pve1","tags":"a;b"}]}`,
		`{"data":[{"type":"node","node":"pve1","status":"offline"},{"type":"cluster","quorate":0}]}`,
		`{"data":[{"n":1,"t":"  Logical volume \"vm-100-disk-0\" created."}],"total":1}`, `{"data":{"n":1,"t":"unable to open file"}}`,
		`{"data":[{"upid":"x","type":"qmclone","id":"100","user":"a@pve","tokenid":"b","starttime":"1790000000","status":"OK"}]}`,
		`{"data":{"status":"stopped","exitstatus":"WARNINGS: 1","user":"a@pve","starttime":1e9}}`,
		`{"data":{"release":"9.2","version":"9.2.11","mac_prefix":"BC:24:11","user-tag-access":"user-allow=list","registered-tags":"a;b","allowed-tags":["a"]}}`,
		`{"data":{"result":[{"ip-addresses":[{"ip-address":"fe80::1%eth0"},{"ip-address":"::ffff:10.0.0.1"}]}]}}`,
		`{"data":{"/":{"Sys.Audit":1},"/vms/100":{"VM.Audit":"0"}}}`, `{"data":[{"id":"gpu","mdev":1,"map":["node=pve1,path=0000:01:00.0"]}]}`,
		`{"data":[{"iface":"vmbr0","cidr":"10.0.0.1/8","gateway":"x"}]}`, `{"data":[{"ip":"10.0.0.2","vmid":"NaN"}]}`,
	} {
		f.Add(200, "OK", body)
	}
	f.Add(500, "VM is locked (backup)", `{"data":null,"message":"x\ny"}`)
	f.Add(403, "Permission check failed (/vms/100, VM.Audit)", ``)
	f.Add(302, "Found", `<html>`)
	f.Fuzz(func(t *testing.T, status int, reason, body string) {
		for name, call := range calls {
			// A new client for each call: the quorum check depends on earlier calls.
			found, err := call(t.Context(), clientWith(t, roundTripper{status, reason, body}))
			if err != nil {
				kindName(t, err)
				if strings.ContainsAny(err.Error(), "\r\n") {
					t.Errorf("%s: more than one line: %q", name, err)
				}
				if !reflect.ValueOf(found).IsZero() {
					t.Errorf("%s: returned %+v with %v", name, found, err)
				}
				continue
			}
			again, err := call(t.Context(), clientWith(t, roundTripper{status, reason, body}))
			if err != nil || !reflect.DeepEqual(found, again) {
				t.Errorf("%s: read %+v, then %+v (%v)", name, found, again, err)
			}
		}
	})
}

// A number is decoded exactly, or as the nearest one that fits.
func FuzzNumeric(f *testing.F) {
	for _, seed := range []string{`1`, `"16777216000"`, `-0.5`, `"NaN"`, `"+Inf"`, `1e300`, `-1e300`, `null`, `true`, `""`, `"0x10"`, `9223372036854775807`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var n numeric
		if err := json.Unmarshal(data, &n); err != nil {
			return
		}
		want := math.Trunc(float64(n))
		if !(math.Abs(want) < 1<<63) {
			want = math.Copysign(1<<63, want)
		}
		if float64(n.whole()) != want {
			t.Errorf("%s was read as %v, %d as a whole number", data, float64(n), n.whole())
		}
		if integer, err := strconv.ParseInt(string(data), 10, 53); err == nil && n.whole() != integer {
			t.Errorf("%s was read as %d", data, n.whole())
		}
	})
}
