// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"encoding/json"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestErrors(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer reply
		kind   error
		text   string
	}{
		"message_in_the_body": {failed(500, "VM is locked (backup)"), proxmox.ErrLocked, "VM is locked (backup)"},
		"reason_phrase_alone_as_before_8.4": {
			reply{status: 500, reason: "can't lock file '/var/lock/qemu-server/lock-303.conf' - got timeout", body: `{"data":null}`},
			proxmox.ErrLocked, "lock-303.conf"},
		"nothing_was_started":   {failed(500, "got no worker upid - start worker failed"), proxmox.ErrBusy, "no worker"},
		"host_away_595":         {reply{status: 595, reason: "No route to host"}, proxmox.ErrHostUnreachable, "No route to host"},
		"host_broke_off_596":    {reply{status: 596, reason: "Connection timed out"}, proxmox.ErrUnknownOutcome, "Connection timed out"},
		"load_balancer":         {reply{status: 504, body: "<html>"}, proxmox.ErrUnknownOutcome, "504"},
		"credentials":           {reply{status: 401, reason: "Authentication failed!"}, proxmox.ErrUnauthorized, "Authentication failed!"},
		"no_JSON":               {reply{status: 200, body: "<html>welcome</html>"}, proxmox.ErrUnknownOutcome, "not a Proxmox VE API"},
		"answer_without_a_task": {data(`null`), proxmox.ErrUnknownOutcome, "instead of a task"},
		"redirect":              {reply{status: 301, body: ""}, proxmox.ErrUnreachable, "301"},
	} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			c, host := clientOf(t, always(test.answer))
			_, err := c.CloneVM(t.Context(), proxmox.CloneRequest{Host: "pve1", TemplateID: 9001, VMID: 200})
			g.Expect(err).To(And(MatchError(test.kind), MatchError(ContainSubstring(test.text))))
			g.Expect(err).To(MatchError(HavePrefix("cloning template 9001 on host pve1 to VM 200: ")))
			g.Expect(err).NotTo(MatchError(Or(ContainSubstring("\n"), ContainSubstring(testSecret))))
			g.Expect(host.requests()).To(HaveLen(1), "a write is never repeated")
		})
	}
}

func TestErrorsOfCalls(t *testing.T) {
	t.Parallel()
	noStorage := failed(500, "storage 'nfs' does not exist")
	for name, test := range map[string]struct {
		answer reply
		call   call
		want   types.GomegaMatcher
	}{
		"invalid_parameters": {reply{status: 400, reason: "Parameter verification failed.",
			body: `{"data":null,"errors":{"tags":"invalid format - invalid characters in tag\n","cores":"value must have a minimum value of 1"},` +
				`"message":"Parameter verification failed.\n"}`}, bind1(client.CreateVM, proxmox.CreateRequest{Host: "pve1", VMID: 200}),
			MatchError(HaveSuffix("refused: cores: value must have a minimum value of 1; tags: invalid format - invalid characters in tag"))},
		"config_of_no_VM": {failed(500, "Configuration file 'nodes/pve1/qemu-server/200.conf' does not exist"),
			bind2(client.VMConfig, "pve1", 200), MatchError(proxmox.ErrNotFound)},
		// A VM call that fails for a missing storage does not mean that the VM is missing.
		"destroying_with_a_storage_gone": {noStorage, bind2(client.DestroyVM, "pve1", 200), MatchError(proxmox.ErrFailed)},
		"listing_a_storage_that_is_gone": {noStorage, bind3(client.Volumes, "pve1", "nfs", "iso"), MatchError(proxmox.ErrNotFound)},
		"log_of_no_task":                 {data(`{"n":1,"t":"unable to open file - No such file or directory"}`), bind1(client.TaskLog, testUPID), MatchError(proxmox.ErrNotFound)},
		// Proxmox has no status for a missing pool.
		"no_pool": {failed(500, "pool 'nothing' does not exist"), bind1(client.PoolExists, "nothing"), BeNil()},
		// An error of the agent is not a guest without addresses.
		"agent": {data(`{"result":{"error":{"class":"GenericError","desc":"frozen"}}}`), bind2(client.GuestAddresses, "pve1", 101),
			MatchError("querying the guest agent of VM 101 on host pve1: it reports no interfaces: frozen")},
	} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			c, _ := clientOf(t, always(test.answer))
			result, err := test.call(t.Context(), c)
			g.Expect(err).To(test.want)
			g.Expect(result).To(BeZero())
		})
	}
}

func TestErrorsEmptyPathParameter(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		c, host := clientOf(t, always(data(`{}`)))
		g.Expect(c.VMConfig(t.Context(), "", 200)).Error().To(MatchError(ContainSubstring("{node}")))
		g.Expect(c.DestroyVM(t.Context(), "pve1", 0)).Error().To(MatchError(ContainSubstring("{vmid}")))
		g.Expect(c.Task(t.Context(), "UPID:foo")).Error().To(MatchError(ContainSubstring("UPID:foo")))
		g.Expect(host.requests()).To(BeEmpty())
	})
}

func TestSecret(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	cfg := proxmox.ClusterConfig{Region: "dc1", TokenSecret: testSecret, Password: "letmein"}
	encoded, err := json.Marshal(cfg)
	g.Expect(err).NotTo(HaveOccurred())
	for _, text := range []string{fmt.Sprint(cfg), fmt.Sprintf("%+v", cfg), fmt.Sprintf("%#v", cfg), string(encoded)} {
		g.Expect(text).NotTo(Or(ContainSubstring(testSecret), ContainSubstring("letmein")))
	}
}
