// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"bytes"
	"context"
	"io"
	"mime"
	"mime/multipart"
	"net/netip"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Every method makes exactly one call.
func TestCalls(t *testing.T) {
	t.Parallel()
	upid := data(`"` + testUPID + `"`)
	escaped := "UPID:pve1:00003921:00053CD7:6AF90394:qmclone:9001:kubernetes@pve%21karpenter:"
	for name, test := range map[string]struct {
		call   func(context.Context, proxmox.Client) (any, error)
		answer reply
		sent   string
		result any
	}{
		"version": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.Version(ctx) },
			answer: data(version), sent: "GET /version",
			result: proxmox.Version{Release: "8.4", Full: "8.4.21"},
		},
		"options_tags_free": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.Options(ctx) },
			answer: data(`{"allowed-tags":[]}`), sent: "GET /cluster/options",
			result: proxmox.ClusterOptions{MACPrefix: "BC:24:11"},
		},
		"options_tags_restricted": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) { return c.Options(ctx) },
			answer: data(`{"mac_prefix":"02:00:00","allowed-tags":["a"],"keyboard":"en-us","description":"",` +
				`"user-tag-access":{"user-allow":"existing"},"registered-tags":["prod"]}`),
			sent:   "GET /cluster/options",
			result: proxmox.ClusterOptions{MACPrefix: "02:00:00", TagAccess: "existing", AllowedTags: []string{"a"}, RegisteredTags: []string{"prod"}},
		},
		"options_no_tag_allowed": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.Options(ctx) },
			answer: data(`{"allowed-tags":[],"user-tag-access":"user-allow=none"}`), sent: "GET /cluster/options",
			result: proxmox.ClusterOptions{MACPrefix: "BC:24:11", TagAccess: "none", AllowedTags: []string{}},
		},
		"permissions": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.Permissions(ctx) },
			answer: data(`{"/vms":{"VM.Clone":1,"VM.Audit":0}}`), sent: "GET /access/permissions",
			result: proxmox.Permissions{"/vms": {"VM.Clone": true, "VM.Audit": false}},
		},
		"permissions_denied": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.Permissions(ctx) },
			answer: data(`{"/":{"VM.Audit":1},"/nodes":{"VM.Audit":1},"/pool":{"VM.Audit":1},"/sdn":{"VM.Audit":1},"/storage":{"VM.Audit":1}}`), sent: "GET /access/permissions",
			result: proxmox.Permissions{"/": {"VM.Audit": true}, "/nodes": {"VM.Audit": true}, "/pool": {"VM.Audit": true}, "/sdn": {"VM.Audit": true}, "/storage": {"VM.Audit": true}, "/vms": {}},
		},
		"permissions_not_inherited": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.Permissions(ctx) },
			answer: data(`{"/":{"VM.Audit":0}}`), sent: "GET /access/permissions",
			result: proxmox.Permissions{"/": {"VM.Audit": false}},
		},
		"access": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.HasAccess(ctx, "/nodes/pve1") },
			answer: data(`{"/nodes/pve1":{"Sys.Audit":0}}`), sent: "GET /access/permissions?path=%2Fnodes%2Fpve1",
			result: true,
		},
		"access_denied": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.HasAccess(ctx, "/nodes/pve1") },
			answer: data(`{"/nodes/pve1":{}}`), sent: "GET /access/permissions?path=%2Fnodes%2Fpve1",
			result: false,
		},
		"roles": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.Roles(ctx) },
			answer: data(`[{"roleid":"Reader","privs":"Sys.Audit,VM.Audit","special":0},{"roleid":"NoAccess","privs":"","special":1}]`), sent: "GET /access/roles",
			result: map[string][]string{"Reader": {"Sys.Audit", "VM.Audit"}, "NoAccess": {}},
		},
		"security_groups": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.SecurityGroups(ctx) },
			answer: data(`[{"comment":"c","digest":"9e12","group":"k8s"}]`), sent: "GET /cluster/firewall/groups",
			result: []string{"k8s"},
		},
		"bridges": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) { return c.Bridges(ctx, "pve1") },
			answer: data(`[{"type":"bridge","iface":"vmbr0","active":1,"bridge_ports":"eno1","bridge_vlan_aware":1,"cidr":"192.168.0.10/24","gateway":"192.168.0.1","cidr6":"2001:db8::a/64","gateway6":"fe80::1"},` +
				`{"type":"bridge","iface":"vmbr1","bridge_ports":""},{"type":"vnet","iface":"blue"}]`),
			sent: "GET /nodes/pve1/network?type=any_bridge",
			result: []proxmox.Bridge{
				{
					Name: "vmbr0", Type: "bridge", Ports: "eno1", VLANAware: true,
					CIDR4: netip.MustParsePrefix("192.168.0.10/24"), Gateway4: netip.MustParseAddr("192.168.0.1"),
					CIDR6: netip.MustParsePrefix("2001:db8::a/64"), Gateway6: netip.MustParseAddr("fe80::1"),
				}, {Name: "vmbr1", Type: "bridge"}, {Name: "blue", Type: "vnet"},
			},
		},
		"vnets": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.VNets(ctx) },
			answer: data(`[{"type":"vnet","vnet":"blue","zone":"lab","vlanaware":1},{"type":"vnet","vnet":"red","zone":"lab","tag":7}]`),
			sent:   "GET /cluster/sdn/vnets",
			result: []proxmox.VNet{{Name: "blue", Zone: "lab", VLANAware: true}, {Name: "red", Zone: "lab"}},
		},
		"pool": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.PoolExists(ctx, "a/b") },
			answer: data(`[{"members":[],"poolid":"a/b"}]`), sent: "GET /pools?poolid=a%2Fb",
			result: true,
		},
		"container": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.ContainerConfig(ctx, "pve1", 150) },
			answer: data(`{"memory":512,"net0":"name=eth0,ip=192.168.0.53/24","digest":"eb54","lxc":[["lxc.apparmor.profile","x"]]}`),
			sent:   "GET /nodes/pve1/lxc/150/config",
			result: proxmox.VMConfig{Options: map[string]string{"memory": "512", "net0": "name=eth0,ip=192.168.0.53/24"}, Digest: "eb54"},
		},
		"addresses_of_the_clusters_IPAM": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.SDNAddresses(ctx) },
			answer: data(`[{"zone":"lab","vnet":"blue","subnet":"10.9.0.0/24","ip":"10.9.0.1","gateway":1},{"zone":"lab","vnet":"blue","ip":"10.9.0.2","mac":"BC:24:11:00:00:01","vmid":"101"},{"ip":null}]`),
			sent:   "GET /cluster/sdn/ipams/pve/status",
			result: []proxmox.SDNAddress{
				{Address: netip.MustParseAddr("10.9.0.1"), VNet: "blue", Zone: "lab"},
				{Address: netip.MustParseAddr("10.9.0.2"), MAC: "BC:24:11:00:00:01", VMID: 101, VNet: "blue", Zone: "lab"},
			},
		},
		"addresses_of_a_guest": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) { return c.GuestAddresses(ctx, "pve1", 101) },
			answer: data(`{"result":[{"name":"lo","ip-addresses":[{"ip-address":"127.0.0.1","ip-address-type":"ipv4","prefix":8},{"ip-address":"::1"}]},` +
				`{"name":"eth0","hardware-address":"bc:24:11:00:00:01","ip-addresses":[{"ip-address":"192.168.0.7"},{"ip-address":"fe80::1"},{"ip-address":"2001:db8::7"}]},{"name":"eth1"}]}`),
			sent:   "GET /nodes/pve1/qemu/101/agent/network-get-interfaces",
			result: []netip.Addr{netip.MustParseAddr("192.168.0.7"), netip.MustParseAddr("2001:db8::7")},
		},
		"file_of_a_guest": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.GuestFile(ctx, "pve1", 101, "/a") },
			answer: data(`{"content":"a\nb","truncated":1}`), sent: "GET /nodes/pve1/qemu/101/agent/file-read?file=%2Fa", result: "a\nb",
		},
		"config": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.VMConfig(ctx, "pve1", 321) },
			answer: data(`{"description":" qmclone temporary file","digest":"eb54","lock":"clone"}`),
			sent:   "GET /nodes/pve1/qemu/321/config?current=1",
			result: proxmox.VMConfig{Options: map[string]string{"description": " qmclone temporary file", "lock": "clone"}, Digest: "eb54"},
		},
		"status": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) { return c.VMStatus(ctx, "pve1", 200) },
			answer: data(`{"cpu":0,"status":"running","ha":{"managed":0},"pid":15175,"uptime":2,"agent":1,"clipboard":null,` +
				`"lock":"backup","qmpstatus":"running","nics":{"tap200i0":{"netin":110}},"vmid":200}`),
			sent:   "GET /nodes/pve1/qemu/200/status/current",
			result: proxmox.VMStatus{Running: true, Status: "running", Lock: "backup", UptimeSeconds: 2, AgentEnabled: true},
		},
		"linked_clone": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) {
				return c.CloneVM(ctx, proxmox.CloneRequest{Host: "pve1", TemplateID: 9001, VMID: 200, Name: "node-200", Description: "ours\n", Target: "pve1"})
			},
			answer: upid, sent: `POST /nodes/pve1/qemu/9001/clone {"description":"ours\n","full":"0","name":"node-200","newid":"200"}`,
			result: proxmox.UPID(testUPID),
		},
		"full_clone_to_other_host": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) {
				return c.CloneVM(ctx, proxmox.CloneRequest{Host: "pve1", TemplateID: 9001, VMID: 200, Full: true, Storage: "ceph", Target: "pve2", Pool: "k8s"})
			},
			answer: upid, sent: `POST /nodes/pve1/qemu/9001/clone {"full":"1","newid":"200","pool":"k8s","storage":"ceph","target":"pve2"}`,
			result: proxmox.UPID(testUPID),
		},
		"update": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) {
				return nil, c.UpdateVM(ctx, "pve1", 200, proxmox.ConfigChange{
					Set: map[string]string{"cores": "4"}, Delete: []string{"ide2", "hotplug"}, Digest: "abc",
				})
			},
			answer: data(`null`), sent: `PUT /nodes/pve1/qemu/200/config {"cores":"4","delete":"hotplug,ide2","digest":"abc"}`,
		},
		"update_of_nothing": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) {
				return nil, c.UpdateVM(ctx, "pve1", 200, proxmox.ConfigChange{Digest: "abc"})
			},
			answer: failed(500, "no options specified"),
		},
		"resize": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) {
				return c.ResizeDisk(ctx, "pve1", 200, "scsi0", 30<<30+1)
			},
			answer: upid, sent: `PUT /nodes/pve1/qemu/200/resize {"disk":"scsi0","size":"30721M"}`, result: proxmox.UPID(testUPID),
		},
		"start": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.StartVM(ctx, "pve1", 200) },
			answer: upid, sent: "POST /nodes/pve1/qemu/200/status/start", result: proxmox.UPID(testUPID),
		},
		"stop": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.StopVM(ctx, "pve1", 200) },
			answer: upid, sent: `POST /nodes/pve1/qemu/200/status/stop {"overrule-shutdown":"1"}`, result: proxmox.UPID(testUPID),
		},
		"reset": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.ResetVM(ctx, "pve1", 200) },
			answer: upid, sent: "POST /nodes/pve1/qemu/200/status/reset", result: proxmox.UPID(testUPID),
		},
		"destroy": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.DestroyVM(ctx, "pve1", 200) },
			answer: upid, sent: "DELETE /nodes/pve1/qemu/200?destroy-unreferenced-disks=0&purge=1", result: proxmox.UPID(testUPID),
		},
		"create": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) {
				return c.CreateVM(ctx, proxmox.CreateRequest{Host: "pve1", VMID: 1000, Pool: "k8s", Options: map[string]string{"name": "ubuntu"}})
			},
			answer: upid, sent: `POST /nodes/pve1/qemu {"name":"ubuntu","pool":"k8s","vmid":"1000"}`, result: proxmox.UPID(testUPID),
		},
		"convert": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) {
				return c.ConvertToTemplate(ctx, "pve1", 1000)
			},
			answer: upid, sent: "POST /nodes/pve1/qemu/1000/template", result: proxmox.UPID(testUPID),
		},
		"download": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) {
				return c.DownloadImage(ctx, proxmox.DownloadRequest{Host: "pve1", Storage: "local", Name: "a.qcow2", URL: "https://images/a", Checksum: "00ff", ChecksumType: "md5"})
			},
			answer: upid, result: proxmox.UPID(testUPID),
			sent: `POST /nodes/pve1/storage/local/download-url {"checksum":"00ff","checksum-algorithm":"md5","content":"import","filename":"a.qcow2","url":"https://images/a"}`,
		},
		"volumes": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) {
				return c.Volumes(ctx, "pve1", "local", "iso")
			},
			answer: data(`[{"size":358400,"content":"iso","ctime":1794704271,"format":"iso","volid":"local:iso/tiny.iso"},` +
				`{"volid":"local:100/vm-100-disk-0.qcow2","size":"1024","vmid":"100","format":"qcow2"}]`),
			sent: "GET /nodes/pve1/storage/local/content?content=iso",
			result: []proxmox.Volume{
				{ID: "local:iso/tiny.iso", Format: "iso", SizeBytes: 358400, Created: time.Unix(1794704271, 0)},
				{ID: "local:100/vm-100-disk-0.qcow2", Format: "qcow2", SizeBytes: 1024, VMID: 100},
			},
		},
		"delete_volume": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) {
				return c.DeleteVolume(ctx, "pve1", "local:iso/karpenter 1.iso")
			},
			answer: upid, sent: "DELETE /nodes/pve1/storage/local/content/local:iso/karpenter%201.iso", result: proxmox.UPID(testUPID),
		},
		"delete_volume_without_task": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) {
				return c.DeleteVolume(ctx, "pve1", "local:iso/a.iso")
			},
			answer: data(`null`), sent: "DELETE /nodes/pve1/storage/local/content/local:iso/a.iso", result: proxmox.UPID(""),
		},
		"task": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) { return c.Task(ctx, testUPID) },
			answer: data(`{"node":"pve1","starttime":1794704276,"pid":14625,"id":"9001","tokenid":"karpenter","pstart":342654,` +
				`"status":"stopped","user":"kubernetes@pve","exitstatus":"OK","type":"qmclone","upid":"` + testUPID + `"}`),
			sent: "GET /nodes/pve1/tasks/" + escaped + "/status",
			result: proxmox.TaskStatus{UPID: testUPID, Type: "qmclone", ID: "9001", User: testTokenID,
				Started: time.Unix(1794704276, 0), Exit: "OK"},
		},
		"task_log": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return c.TaskLog(ctx, testUPID) },
			answer: data(`[{"n":1,"t":"bridge 'vmbr7' does not exist"},{"t":"TASK ERROR: start failed","n":2}]`),
			sent:   "GET /nodes/pve1/tasks/" + escaped + "/log?limit=0",
			result: []string{"bridge 'vmbr7' does not exist", "TASK ERROR: start failed"},
		},
		"cancel_task": {
			call:   func(ctx context.Context, c proxmox.Client) (any, error) { return nil, c.CancelTask(ctx, testUPID) },
			answer: data(`null`), sent: "DELETE /nodes/pve1/tasks/" + escaped,
		},
		"recent_tasks": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) {
				return c.RecentTasks(ctx, "pve1", testTokenID, time.Unix(1794704276, 0))
			},
			answer: data(`[{"upid":"` + testUPID + `","type":"qmclone","id":"9001","user":"kubernetes@pve","tokenid":"karpenter","starttime":1794704276},` +
				`{"upid":"` + testUPID + `","type":"qmclone","id":"9001","user":"kubernetes@pve","tokenid":"karpenter","starttime":1794704276,"endtime":1794704277,"status":"OK"}]`),
			sent: "GET /nodes/pve1/tasks?limit=1000&since=1794704276&source=all&userfilter=kubernetes%40pve%21karpenter",
			result: []proxmox.TaskStatus{
				{UPID: testUPID, Type: "qmclone", ID: "9001", User: testTokenID, Started: time.Unix(1794704276, 0), Running: true},
				{UPID: testUPID, Type: "qmclone", ID: "9001", User: testTokenID, Started: time.Unix(1794704276, 0), Exit: "OK"},
			},
		},
		"running_tasks": {
			call: func(ctx context.Context, c proxmox.Client) (any, error) {
				return c.RunningTasks(ctx, "pve1", "qmclone")
			},
			answer: data(`[{"upid":"` + testUPID + `","type":"qmclone","id":"9001","user":"kubernetes@pve","tokenid":"karpenter","starttime":1794704276,"status":"RUNNING"},` +
				`{"upid":"` + testUPID + `","type":"qmclone","id":"9001","user":"kubernetes@pve","starttime":1794704276,"endtime":1794704277,"status":"OK"}]`),
			sent: "GET /nodes/pve1/tasks?limit=1000&source=active&typefilter=qmclone",
			result: []proxmox.TaskStatus{{UPID: testUPID, Type: "qmclone", ID: "9001", User: testTokenID,
				Started: time.Unix(1794704276, 0), Running: true}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			c, host := clientOf(t, always(test.answer))
			result, err := test.call(testContext(t), c)
			g.Expect(err).NotTo(HaveOccurred())
			if test.result == nil {
				g.Expect(result).To(BeNil())
			} else {
				g.Expect(result).To(Equal(test.result))
			}
			var sent []string
			for _, r := range host.requests() {
				sent = append(sent, r.String())
				g.Expect(r.chunked).To(BeFalse())
				g.Expect(r.header.Get("Authorization")).To(Equal("PVEAPIToken=" + testTokenID + "=" + testSecret))
				if r.body == "" {
					g.Expect(r.header.Get("Content-Type")).To(BeEmpty(), "JSON without a body is refused")
				}
			}
			g.Expect(strings.Join(sent, "\n")).To(Equal(test.sent))
		})
	}
}

func TestResources(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	rows := data(`[
		{"maxmem":25275125760,"uptime":3421,"cpu":0.5,"type":"node","maxcpu":2,"node":"pve1","disk":16384,"maxdisk":12637560832,"status":"online","level":"","id":"node/pve1","mem":2402590720,"cgroup-mode":2},
		{"type":"node","node":"pve2","status":"offline","id":"node/pve2","hastate":"maintenance"},
		{"content":"rootdir,images,iso","plugintype":"dir","maxdisk":270553174016,"disk":31353716736,"node":"pve1","type":"storage","storage":"local","id":"storage/pve1/local","shared":0,"status":"available"},
		{"node":"pve1","type":"sdn","sdn":"localnetwork","id":"sdn/pve1/localnetwork","status":"ok"},
		{"maxcpu":1,"type":"qemu","node":"pve1","template":0,"id":"qemu/201","name":"node-201","vmid":201,"uptime":0,"tags":"karpenter;tpl","status":"stopped","lock":"backup","maxmem":268435456,"maxdisk":67108864,"memhost":0},
		{"id":"qemu/202","vmid":202,"node":"pve1","type":"qemu","status":"unknown"},
		{"id":"lxc/300","vmid":"300","node":"pve1","type":"lxc","status":"running","maxcpu":0.5,"maxmem":1e9,"pool":"p"}
	]`)
	c, host := clientOf(t, func(r request) reply {
		if r.uri == "/cluster/status" {
			return data(`[{"type":"cluster","quorate":1}]`)
		}
		return rows
	})
	_, err := c.Resources(testContext(t))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(host.requests()).To(HaveLen(2), "pve2 is offline: reads the quorum once")
	found, err := c.Resources(testContext(t))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(host.requests()).To(HaveLen(3))
	g.Expect(found.Hosts).To(Equal([]proxmox.HostRow{
		{Name: "pve1", Online: true, CPUs: 2, MemoryBytes: 25275125760, UsedMemoryBytes: 2402590720, CPULoad: 0.5, UptimeSeconds: 3421, Arch: "x86_64"},
		{Name: "pve2", Maintenance: true, Arch: "x86_64"},
	}))
	g.Expect(found.Storages).To(Equal([]proxmox.StorageRow{{
		Name: "local", Host: "pve1", Type: "dir", Content: []string{"rootdir", "images", "iso"},
		Available: true, UsedBytes: 31353716736, TotalBytes: 270553174016,
	}}))
	g.Expect(found.Guests).To(HaveLen(3))
	g.Expect(found.Guests[0]).To(Equal(proxmox.GuestRow{
		VMID: 201, Kind: proxmox.KindQEMU, Name: "node-201", Host: "pve1", Status: "stopped", Tags: []string{"karpenter", "tpl"},
		Lock: "backup", CPUs: 1, MemoryBytes: 268435456, DiskBytes: 67108864,
	}))
	g.Expect(found.Guests[1].HasResources()).To(BeFalse())
	g.Expect(found.Guests[2]).To(Equal(proxmox.GuestRow{
		VMID: 300, Kind: proxmox.KindLXC, Host: "pve1", Status: "running", Tags: []string{}, CPUs: 1, MemoryBytes: 1e9, Pool: "p",
	}))
}

// An error of the agent is not a guest without addresses.
func TestGuestAddressesAgentError(t *testing.T) {
	t.Parallel()
	c, _ := clientOf(t, always(data(`{"result":{"error":{"class":"GenericError","desc":"frozen"}}}`)))
	_, err := c.GuestAddresses(testContext(t), "pve1", 101)
	NewWithT(t).Expect(err).To(MatchError("querying the guest agent of VM 101 on host pve1: it reports no interfaces: frozen"))
}

func TestTaskLogNotFound(t *testing.T) {
	t.Parallel()
	c, _ := clientOf(t, always(data(`{"n":1,"t":"unable to open file - No such file or directory"}`)))
	_, err := c.TaskLog(testContext(t), testUPID)
	NewWithT(t).Expect(err).To(MatchError(proxmox.ErrNotFound))
}

func TestUploadISO(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c, host := clientOf(t, always(data(`"`+testUPID+`"`)))
	image := bytes.Repeat([]byte{0, 1, 2, 0xff}, 256<<10)
	_, err := c.UploadISO(testContext(t), "pve1", "local", "boot-200.iso", image)
	g.Expect(err).NotTo(HaveOccurred())

	seen := host.requests()
	g.Expect(seen).To(HaveLen(1))
	g.Expect(seen[0].method + " " + seen[0].uri).To(Equal("POST /nodes/pve1/storage/local/upload"))
	g.Expect(seen[0].chunked).To(BeFalse())
	g.Expect(seen[0].length).To(BeEquivalentTo(len(seen[0].body)))
	_, params, err := mime.ParseMediaType(seen[0].header.Get("Content-Type"))
	g.Expect(err).NotTo(HaveOccurred())
	reader := multipart.NewReader(strings.NewReader(seen[0].body), params["boundary"])
	content, err := reader.NextPart()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(content.FormName()).To(Equal("content"), "Proxmox wants the fields before the file")
	file, err := reader.NextPart()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(file.FormName()).To(Equal("filename"))
	g.Expect(file.FileName()).To(Equal("boot-200.iso"))
	received, err := io.ReadAll(file)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(bytes.Equal(received, image)).To(BeTrue())

	_, err = c.UploadISO(testContext(t), "pve1", "local", "../boot.iso", image)
	g.Expect(err).To(MatchError(ContainSubstring("../boot.iso")))
	g.Expect(host.requests()).To(HaveLen(1))
}
