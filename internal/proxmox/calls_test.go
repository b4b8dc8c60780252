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

type (
	client = proxmox.Client
	call   = func(context.Context, client) (any, error)
)

// bind returns a call of a method without arguments, bind1 with one, and so on.
func bind[R any](method func(client, context.Context) (R, error)) call {
	return func(ctx context.Context, c client) (any, error) { return method(c, ctx) }
}

func bind1[A, R any](method func(client, context.Context, A) (R, error), a A) call {
	return func(ctx context.Context, c client) (any, error) { return method(c, ctx, a) }
}

func bind2[A, B, R any](method func(client, context.Context, A, B) (R, error), a A, b B) call {
	return func(ctx context.Context, c client) (any, error) { return method(c, ctx, a, b) }
}

func bind3[A, B, C, R any](method func(client, context.Context, A, B, C) (R, error), a A, b B, last C) call {
	return func(ctx context.Context, c client) (any, error) { return method(c, ctx, a, b, last) }
}

// Every method makes exactly one call.
func TestCalls(t *testing.T) {
	t.Parallel()
	task, started := data(`"`+testUPID+`"`), proxmox.UPID(testUPID)
	update := func(change proxmox.ConfigChange) call {
		return func(ctx context.Context, c client) (any, error) { return "", c.UpdateVM(ctx, "pve1", 200, change) }
	}
	escaped := "UPID:pve1:00003921:00053CD7:6AF90394:qmclone:9001:kubernetes@pve%21karpenter:"
	for name, test := range map[string]struct {
		call   call
		sent   string
		answer reply
		result any
	}{
		"version": {bind(client.Version), "GET /version",
			data(version), proxmox.Version{Release: "8.4", Full: "8.4.21"}},
		"options_tags_free": {bind(client.Options), "GET /cluster/options",
			data(`{"allowed-tags":[]}`), proxmox.ClusterOptions{MACPrefix: "BC:24:11"}},
		"options_tags_restricted": {bind(client.Options), "GET /cluster/options",
			data(`{"mac_prefix":"02:00:00","allowed-tags":["a"],"keyboard":"en-us","description":"",` +
				`"user-tag-access":{"user-allow":"existing"},"registered-tags":["prod"]}`),
			proxmox.ClusterOptions{MACPrefix: "02:00:00", TagAccess: "existing", AllowedTags: []string{"a"}, RegisteredTags: []string{"prod"}}},
		"options_no_tag_allowed": {bind(client.Options), "GET /cluster/options",
			data(`{"allowed-tags":[],"user-tag-access":"user-allow=none"}`),
			proxmox.ClusterOptions{MACPrefix: "BC:24:11", TagAccess: "none", AllowedTags: []string{}}},
		"permissions": {bind(client.Permissions), "GET /access/permissions",
			data(`{"/vms":{"VM.Clone":1,"VM.Audit":0}}`),
			proxmox.Permissions{"/vms": {"VM.Clone": true, "VM.Audit": false}}},
		"permissions_denied": {bind(client.Permissions), "GET /access/permissions",
			data(`{"/":{"VM.Audit":1},"/nodes":{"VM.Audit":1},"/pool":{"VM.Audit":1},"/sdn":{"VM.Audit":1},"/storage":{"VM.Audit":1}}`),
			proxmox.Permissions{"/": {"VM.Audit": true}, "/nodes": {"VM.Audit": true}, "/pool": {"VM.Audit": true},
				"/sdn": {"VM.Audit": true}, "/storage": {"VM.Audit": true}, "/vms": {}}},
		"permissions_not_inherited": {bind(client.Permissions), "GET /access/permissions",
			data(`{"/":{"VM.Audit":0}}`), proxmox.Permissions{"/": {"VM.Audit": false}}},
		"access": {bind1(client.HasAccess, "/nodes/pve1"), "GET /access/permissions?path=%2Fnodes%2Fpve1",
			data(`{"/nodes/pve1":{"Sys.Audit":0}}`), true},
		"access_denied": {bind1(client.HasAccess, "/nodes/pve1"), "GET /access/permissions?path=%2Fnodes%2Fpve1",
			data(`{"/nodes/pve1":{}}`), false},
		"roles": {bind(client.Roles), "GET /access/roles",
			data(`[{"roleid":"Reader","privs":"Sys.Audit,VM.Audit","special":0},{"roleid":"NoAccess","privs":"","special":1}]`),
			map[string][]string{"Reader": {"Sys.Audit", "VM.Audit"}, "NoAccess": {}}},
		"security_groups": {bind(client.SecurityGroups), "GET /cluster/firewall/groups",
			data(`[{"comment":"c","digest":"9e12","group":"k8s"}]`), []string{"k8s"}},
		"bridges": {bind1(client.Bridges, "pve1"), "GET /nodes/pve1/network?type=any_bridge",
			data(`[{"type":"bridge","iface":"vmbr0","active":1,"bridge_ports":"eno1","bridge_vlan_aware":1,"cidr":"192.168.0.10/24",` +
				`"gateway":"192.168.0.1","cidr6":"2001:db8::a/64","gateway6":"fe80::1"},` +
				`{"type":"bridge","iface":"vmbr1","bridge_ports":""},{"type":"vnet","iface":"blue"}]`),
			[]proxmox.Bridge{
				{
					Name: "vmbr0", Type: "bridge", Ports: "eno1", VLANAware: true,
					CIDR4: netip.MustParsePrefix("192.168.0.10/24"), Gateway4: netip.MustParseAddr("192.168.0.1"),
					CIDR6: netip.MustParsePrefix("2001:db8::a/64"), Gateway6: netip.MustParseAddr("fe80::1"),
				}, {Name: "vmbr1", Type: "bridge"}, {Name: "blue", Type: "vnet"},
			}},
		"vnets": {bind(client.VNets), "GET /cluster/sdn/vnets",
			data(`[{"type":"vnet","vnet":"blue","zone":"lab","vlanaware":1},{"type":"vnet","vnet":"red","zone":"lab","tag":7}]`),
			[]proxmox.VNet{{Name: "blue", Zone: "lab", VLANAware: true}, {Name: "red", Zone: "lab"}}},
		"pool": {bind1(client.PoolExists, "a/b"), "GET /pools?poolid=a%2Fb",
			data(`[{"members":[],"poolid":"a/b"}]`), true},
		"container": {bind2(client.ContainerConfig, "pve1", 150), "GET /nodes/pve1/lxc/150/config",
			data(`{"memory":512,"net0":"name=eth0,ip=192.168.0.53/24","digest":"eb54","lxc":[["lxc.apparmor.profile","x"]]}`),
			proxmox.VMConfig{Options: map[string]string{"memory": "512", "net0": "name=eth0,ip=192.168.0.53/24"}, Digest: "eb54"}},
		"addresses_of_the_clusters_IPAM": {bind(client.SDNAddresses), "GET /cluster/sdn/ipams/pve/status",
			data(`[{"zone":"lab","vnet":"blue","subnet":"10.9.0.0/24","ip":"10.9.0.1","gateway":1},` +
				`{"zone":"lab","vnet":"blue","ip":"10.9.0.2","mac":"BC:24:11:00:00:01","vmid":"101"},{"ip":null}]`),
			[]proxmox.SDNAddress{
				{Address: netip.MustParseAddr("10.9.0.1"), VNet: "blue", Zone: "lab"},
				{Address: netip.MustParseAddr("10.9.0.2"), MAC: "BC:24:11:00:00:01", VMID: 101, VNet: "blue", Zone: "lab"},
			}},
		"addresses_of_a_guest": {bind2(client.GuestAddresses, "pve1", 101), "GET /nodes/pve1/qemu/101/agent/network-get-interfaces",
			data(`{"result":[{"name":"lo","ip-addresses":[{"ip-address":"127.0.0.1","ip-address-type":"ipv4","prefix":8},{"ip-address":"::1"}]},` +
				`{"name":"eth0","hardware-address":"bc:24:11:00:00:01","ip-addresses":[{"ip-address":"192.168.0.7"},{"ip-address":"fe80::1"},{"ip-address":"2001:db8::7"}]},{"name":"eth1"}]}`),
			[]netip.Addr{netip.MustParseAddr("192.168.0.7"), netip.MustParseAddr("2001:db8::7")}},
		"file_of_a_guest": {bind3(client.GuestFile, "pve1", 101, "/a"), "GET /nodes/pve1/qemu/101/agent/file-read?file=%2Fa",
			data(`{"content":"a\nb","truncated":1}`), "a\nb"},
		"config": {bind2(client.VMConfig, "pve1", 321), "GET /nodes/pve1/qemu/321/config?current=1",
			data(`{"description":" qmclone temporary file","digest":"eb54","lock":"clone"}`),
			proxmox.VMConfig{Options: map[string]string{"description": " qmclone temporary file", "lock": "clone"}, Digest: "eb54"}},
		"status": {bind2(client.VMStatus, "pve1", 200), "GET /nodes/pve1/qemu/200/status/current",
			data(`{"cpu":0,"status":"running","ha":{"managed":0},"pid":15175,"uptime":2,"agent":1,"clipboard":null,` +
				`"lock":"backup","qmpstatus":"running","nics":{"tap200i0":{"netin":110}},"vmid":200}`),
			proxmox.VMStatus{Running: true, Status: "running", Lock: "backup", UptimeSeconds: 2, AgentEnabled: true}},
		"update": {update(proxmox.ConfigChange{Set: map[string]string{"cores": "4"}, Delete: []string{"ide2", "hotplug"}, Digest: "abc"}),
			`PUT /nodes/pve1/qemu/200/config {"cores":"4","delete":"hotplug,ide2","digest":"abc"}`, data(`null`), ""},
		"update_of_nothing": {update(proxmox.ConfigChange{Digest: "abc"}), "", failed(500, "no options specified"), ""},
		"volumes": {bind3(client.Volumes, "pve1", "local", "iso"), "GET /nodes/pve1/storage/local/content?content=iso",
			data(`[{"size":358400,"content":"iso","ctime":1794704271,"format":"iso","volid":"local:iso/tiny.iso"},` +
				`{"volid":"local:100/vm-100-disk-0.qcow2","size":"1024","vmid":"100","format":"qcow2"}]`),
			[]proxmox.Volume{
				{ID: "local:iso/tiny.iso", Format: "iso", SizeBytes: 358400, Created: time.Unix(1794704271, 0)},
				{ID: "local:100/vm-100-disk-0.qcow2", Format: "qcow2", SizeBytes: 1024, VMID: 100},
			}},
		"delete_volume_without_task": {bind2(client.DeleteVolume, "pve1", "local:iso/a.iso"),
			"DELETE /nodes/pve1/storage/local/content/local:iso/a.iso", data(`null`), proxmox.UPID("")},
		"task": {bind1(client.Task, testUPID), "GET /nodes/pve1/tasks/" + escaped + "/status",
			data(`{"node":"pve1","starttime":1794704276,"pid":14625,"id":"9001","tokenid":"karpenter","pstart":342654,` +
				`"status":"stopped","user":"kubernetes@pve","exitstatus":"OK","type":"qmclone","upid":"` + testUPID + `"}`),
			proxmox.TaskStatus{UPID: testUPID, Type: "qmclone", ID: "9001", User: testTokenID,
				Started: time.Unix(1794704276, 0), Exit: "OK"}},
		"task_log": {bind1(client.TaskLog, testUPID), "GET /nodes/pve1/tasks/" + escaped + "/log?limit=0",
			data(`[{"n":1,"t":"bridge 'vmbr7' does not exist"},{"t":"TASK ERROR: start failed","n":2}]`),
			[]string{"bridge 'vmbr7' does not exist", "TASK ERROR: start failed"}},
		"cancel_task": {func(ctx context.Context, c client) (any, error) { return "", c.CancelTask(ctx, testUPID) },
			"DELETE /nodes/pve1/tasks/" + escaped, data(`null`), ""},
		"recent_tasks": {bind3(client.RecentTasks, "pve1", testTokenID, time.Unix(1794704276, 0)),
			"GET /nodes/pve1/tasks?limit=1000&since=1794704276&source=all&userfilter=kubernetes%40pve%21karpenter",
			data(`[{"upid":"` + testUPID + `","type":"qmclone","id":"9001","user":"kubernetes@pve","tokenid":"karpenter","starttime":1794704276},` +
				`{"upid":"` + testUPID + `","type":"qmclone","id":"9001","user":"kubernetes@pve","tokenid":"karpenter","starttime":1794704276,"endtime":1794704277,"status":"OK"}]`),
			[]proxmox.TaskStatus{
				{UPID: testUPID, Type: "qmclone", ID: "9001", User: testTokenID, Started: time.Unix(1794704276, 0), Running: true},
				{UPID: testUPID, Type: "qmclone", ID: "9001", User: testTokenID, Started: time.Unix(1794704276, 0), Exit: "OK"},
			}},
		"running_tasks": {bind2(client.RunningTasks, "pve1", "qmclone"),
			"GET /nodes/pve1/tasks?limit=1000&source=active&typefilter=qmclone",
			data(`[{"upid":"` + testUPID + `","type":"qmclone","id":"9001","user":"kubernetes@pve","tokenid":"karpenter","starttime":1794704276,"status":"RUNNING"},` +
				`{"upid":"` + testUPID + `","type":"qmclone","id":"9001","user":"kubernetes@pve","starttime":1794704276,"endtime":1794704277,"status":"OK"}]`),
			[]proxmox.TaskStatus{{UPID: testUPID, Type: "qmclone", ID: "9001", User: testTokenID, Started: time.Unix(1794704276, 0), Running: true}}},
		"HA_resources": {bind(client.HAResources), "GET /cluster/ha/resources",
			data(`[{"sid":"vm:300","type":"vm","state":"started","digest":"d"},` +
				`{"sid":"ct:301","state":"ignored","max_restart":"0","max_relocate":2,"group":"g","comment":"c"}]`),
			[]proxmox.HAResource{
				{ID: "vm:300", State: "started", MaxRestart: 1, MaxRelocate: 1},
				{ID: "ct:301", State: "ignored", MaxRelocate: 2, Group: "g", Comment: "c"},
			}},
		"HA_groups": {bind(client.HAGroups), "GET /cluster/ha/groups",
			data(`[{"group":"rack1","type":"group","nodes":"pve1:2,pve2","restricted":1,"digest":"d"}]`),
			[]proxmox.HAGroup{{Name: "rack1", Hosts: []string{"pve1", "pve2"}}}},
		"HA_rules": {bind(client.HARules), "GET /cluster/ha/rules",
			data(`[{"rule":"rack1","type":"node-affinity","nodes":"pve1:2,pve2","resources":"vm:300,ct:301","strict":1,"disable":1,"digest":"d","order":1},` +
				`{"rule":"apart","type":"resource-affinity","affinity":"negative","resources":"vm:300","comment":"c","digest":"d"}]`),
			[]proxmox.HARule{
				{Name: "rack1", Type: proxmox.HANodeAffinity, Hosts: []string{"pve1", "pve2"}, Resources: []string{"vm:300", "ct:301"}, Disabled: true, Digest: "d"},
				{Name: "apart", Type: proxmox.HAResourceAffinity, Affinity: proxmox.HANegative, Resources: []string{"vm:300"}, Comment: "c", Digest: "d"},
			}},
		"interface_addresses": {bind1(client.InterfaceAddresses, "pve1"), "GET /nodes/pve1/network",
			data(`[{"type":"bridge","iface":"vmbr0","cidr":"192.168.0.10/24","cidr6":"2001:db8::a/64"},{"type":"eth","iface":"eno1"},` +
				`{"type":"vlan","iface":"vmbr0.10","cidr":"10.10.0.2/24","address":"10.10.0.2","netmask":"24"}]`),
			[]netip.Addr{netip.MustParseAddr("192.168.0.10"), netip.MustParseAddr("2001:db8::a"), netip.MustParseAddr("10.10.0.2")}},
		// the server of an iSCSI storage is its portal
		"storage_servers": {bind(client.StorageServers), "GET /storage",
			data(`[{"storage":"a","type":"iscsi","portal":"10.0.0.1:3260"},{"storage":"b","type":"zfs","portal":"pve2"},` +
				`{"storage":"c","type":"iscsi","portal":"[fd00::1]:3260"},{"storage":"d","type":"dir"},{"storage":"e","type":"nfs","server":"10.97.0.2"}]`),
			map[string]string{"a": "10.0.0.1", "b": "pve2", "c": "fd00::1", "e": "10.97.0.2"}},
		"PCI_mappings": {bind(client.PCIMappings), "GET /cluster/mapping/pci",
			data(`[{"id":"gpu","mdev":1,"map":["node=pve1,path=0000:01:00.0,id=10de:2204","node=pve2,path=0000:02:00"]}]`),
			[]proxmox.PCIMapping{{ID: "gpu", Mediated: true, Devices: []proxmox.PCIDevice{{"pve1", "0000:01:00.0"}, {"pve2", "0000:02:00"}}}}},
		"directory_mappings": {bind(client.DirectoryMappings), "GET /cluster/mapping/dir",
			data(`[{"id":"data","map":["node=pve1,path=/tank/data","node=pve2,path=/srv"]}]`),
			[]proxmox.DirectoryMapping{{ID: "data", Paths: map[string]string{"pve1": "/tank/data", "pve2": "/srv"}}}},
		"USB_mappings": {bind(client.USBMappings), "GET /cluster/mapping/usb",
			data(`[{"id":"key","map":["node=pve1,id=1050:0407"]}]`),
			[]proxmox.USBMapping{{ID: "key", Hosts: []string{"pve1"}}}},
		"host_info": {bind1(client.HostInfo, "pve1"), "GET /nodes/pve1/status",
			data(`{"cpuinfo":{"sockets":2,"cores":"16","cpus":32}}`), proxmox.HostInfo{Sockets: 2, Cores: 16, CPUs: 32}},
		"host_notes": {bind1(client.HostNotes, "pve1"), "GET /nodes/pve1/config",
			data(`{"description":"Rack 7\n"}`), "Rack 7\n"},
		"volume_path": {bind2(client.VolumePath, "pve1", "local:iso/x.iso"),
			"GET /nodes/pve1/storage/local/content/local:iso/x.iso",
			data(`{"path":"/var/lib/vz/x.iso"}`), "/var/lib/vz/x.iso"},
		"HA_preferences_8.4": {bind1(client.HAPreferences, proxmox.Version{Release: "8.4"}), "GET /cluster/ha/groups",
			data(`[{"group":"prefer","nodes":"pve2:1,pve1","type":"group"}]`),
			map[string][]string{"pve1": {"prefer"}, "pve2": {"prefer"}}},
		"HA_preferences_9.2": {bind1(client.HAPreferences, proxmox.Version{Release: "9.2"}), "GET /cluster/ha/rules",
			data(`[{"rule":"prefer","type":"node-affinity","nodes":"pve2:1,pve1","resources":"vm:101"},` +
				`{"rule":"off","type":"node-affinity","nodes":"pve3","disable":1},{"rule":"apart","type":"resource-affinity"}]`),
			map[string][]string{"pve1": {"prefer"}, "pve2": {"prefer"}}},
		"clone": {bind1(client.CloneVM, proxmox.CloneRequest{Host: "pve1", TemplateID: 9001, VMID: 200, Name: "a", Description: "ours\n", Target: "pve1"}),
			`POST /nodes/pve1/qemu/9001/clone {"description":"ours\n","full":"0","name":"a","newid":"200"}`, task, started},
		"full_clone": {bind1(client.CloneVM, proxmox.CloneRequest{Host: "pve1", TemplateID: 9001, VMID: 200, Full: true, Storage: "ceph", Target: "pve2", Pool: "k8s"}),
			`POST /nodes/pve1/qemu/9001/clone {"full":"1","newid":"200","pool":"k8s","storage":"ceph","target":"pve2"}`, task, started},
		"resize": {func(ctx context.Context, c client) (any, error) {
			return c.ResizeDisk(ctx, "pve1", 200, "scsi0", 30<<30+1)
		},
			`PUT /nodes/pve1/qemu/200/resize {"disk":"scsi0","size":"30721M"}`, task, started},
		"start":   {bind2(client.StartVM, "pve1", 200), "POST /nodes/pve1/qemu/200/status/start", task, started},
		"stop":    {bind2(client.StopVM, "pve1", 200), `POST /nodes/pve1/qemu/200/status/stop {"overrule-shutdown":"1"}`, task, started},
		"reset":   {bind2(client.ResetVM, "pve1", 200), "POST /nodes/pve1/qemu/200/status/reset", task, started},
		"destroy": {bind2(client.DestroyVM, "pve1", 200), "DELETE /nodes/pve1/qemu/200?destroy-unreferenced-disks=0&purge=1", task, started},
		"create": {bind1(client.CreateVM, proxmox.CreateRequest{Host: "pve1", VMID: 1000, Pool: "k8s", Options: map[string]string{"name": "ubuntu"}}),
			`POST /nodes/pve1/qemu {"name":"ubuntu","pool":"k8s","vmid":"1000"}`, task, started},
		"convert_to_template": {bind2(client.ConvertToTemplate, "pve1", 1000), "POST /nodes/pve1/qemu/1000/template", task, started},
		"download": {bind1(client.DownloadImage, proxmox.DownloadRequest{
			Host: "pve1", Storage: "local", Name: "a.qcow2", URL: "https://images/a", Checksum: "00ff", ChecksumType: "md5",
		}), `POST /nodes/pve1/storage/local/download-url {"checksum":"00ff","checksum-algorithm":"md5","content":"import",` +
			`"filename":"a.qcow2","url":"https://images/a"}`, task, started},
		"delete_volume": {bind2(client.DeleteVolume, "pve1", "local:iso/karpenter 1.iso"),
			"DELETE /nodes/pve1/storage/local/content/local:iso/karpenter%201.iso", task, started},
	} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			c, host := clientOf(t, always(test.answer))
			g.Expect(test.call(t.Context(), c)).To(Equal(test.result))
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
	simulated(t, func(t *testing.T, g *WithT) {
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
		g.Expect(c.Resources(t.Context())).Error().NotTo(HaveOccurred())
		g.Expect(host.requests()).To(HaveLen(2), "pve2 is offline: reads the quorum once")
		found, err := c.Resources(t.Context())
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
	})
}

func TestUploadISO(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		c, host := clientOf(t, always(data(`"`+testUPID+`"`)))
		image := bytes.Repeat([]byte{0, 1, 2, 0xff}, 256<<10)
		g.Expect(c.UploadISO(t.Context(), "pve1", "local", "boot-200.iso", image)).Error().NotTo(HaveOccurred())

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

		g.Expect(c.UploadISO(t.Context(), "pve1", "local", "../boot.iso", image)).Error().To(MatchError(ContainSubstring("../boot.iso")))
		g.Expect(host.requests()).To(HaveLen(1))
	})
}
