// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// proxmoxAPIGo is the command line of Telmate's proxmox-api-go with a login.
type proxmoxAPIGo struct {
	binary string
	env    []string
}

// step is one command. If its first argument is an action in camel case, it is one of the
// original command line.
type step struct {
	args string
	// input is the standard input.
	input string
	// want is a regular expression that the output matches.
	want string
}

// lifecycle is the life of a VM that is cloned from the default template.
var lifecycle = []step{
	{args: "version", want: `.`},
	{args: "list nodes", want: `"pve3"`},
	{args: "list guests", want: `(\{\},?){6}`},
	{args: "list storages", want: `"local-lvm"`},
	{args: "list resources", want: `"node/pve1"`},
	{args: "list pools", want: `\[`},
	{args: "getVersion", want: `"Major":\d`},
	{args: "getVmList", want: `"office-101"`},
	{args: "get id check 101", want: `in use: 101`},
	{args: "get id check 300", want: `free: 300`},
	{args: "get id next 300", want: `Free ID: 300`},
	{args: "get id max", want: `in use ID: 9002`},
	{args: "cloneQemu ubuntu pve1", input: `{"full": {"node": "pve1", "id": 300, "name": "cli-300", "storage": "local-lvm"}}`, want: `Created guest with ID: 300`},
	{args: "get guest config 300", want: `"cli-300"`},
	{args: "getConfig 300", want: `"cli-300"`},
	{args: "get guest feature 300", want: `[sS]napshot`},
	{args: "create pool cli", input: `{"comment": "of the command line", "guests": [300]}`, want: `\(cli\)`},
	{args: "get pool cli", want: `300`},
	{args: "delete pool cli", want: `\(cli\)`},
	{args: "create snapshot 300 before description", want: `\(before\)`},
	{args: "list snapshots 300", want: `"description"`},
	{args: "guest start 300", want: `\(300\)`},
	{args: "guest status 300", want: `running`},
	{args: "guest uptime 300", want: `is \d+`},
	{args: "guest qemu pause 300", want: `\(300\)`},
	{args: "guest qemu resume 300", want: `\(300\)`},
	{args: "guest qemu hibernate 300", want: `\(300\)`},
	{args: "guest start 300", want: `\(300\)`},
	{args: "guest shutdown 300", want: `\(300\)`},
	{args: "guest status 300", want: `stopped`},
	{args: "guest rollback 300 before", want: `\(before\)`},
	{args: "delete snapshot 300 before", want: `\(before\)`},
	{args: "list snapshots 300", want: `no snapshots`},
	{args: "migrate 300 pve2", want: `is moved`},
	{args: "start 300", want: ``},
	{args: "stop 300", want: ``},
	{args: "delete guest 300", want: ``},
	{args: "get id check 300", want: `free: 300`},
}

// TestProxmoxAPIGo runs commands of Telmate's proxmox-api-go with a password and with a token
// that it creates.
func TestProxmoxAPIGo(t *testing.T) {
	t.Parallel()
	binary := build(t, ".", "build", "github.com/Telmate/proxmox-api-go")
	for _, version := range []string{"8.4", "9.2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			sim := start(t, version)
			client := func(user, password string) proxmoxAPIGo {
				return proxmoxAPIGo{binary: binary, env: sim.environ("PM_API_URL="+sim.url, "PM_USER="+user, "PM_PASS="+password)}
			}
			byPassword := client(rootUser, rootPassword)
			t.Run("password", func(t *testing.T) { byPassword.run(t, lifecycle) })
			secret := byPassword.command(t, step{args: "create token " + rootUser, input: `{"id": "cli", "privsep": false}`, want: `[0-9a-f-]{36}`})
			t.Run("token", func(t *testing.T) { client(rootUser+"!cli", strings.TrimSpace(secret)).run(t, lifecycle) })
		})
	}
}

func (c proxmoxAPIGo) run(t *testing.T, steps []step) {
	t.Helper()
	for _, s := range steps {
		c.command(t, s)
	}
}

var camelCase = regexp.MustCompile(`^([a-z]+[A-Z]\w*|start|stop|migrate)$`)

// command runs one command and returns its output.
func (c proxmoxAPIGo) command(t *testing.T, s step) string {
	t.Helper()
	args := strings.Fields(s.args)
	cmd := exec.CommandContext(t.Context(), c.binary, args...)
	cmd.Dir, cmd.Env, cmd.Stdin = t.TempDir(), c.env, strings.NewReader(s.input)
	if !camelCase.MatchString(args[0]) {
		cmd.Env = append(c.env, "NEW_CLI=true")
	}
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", s.args, err, &stdout, &stderr)
	}
	if out := stdout.String() + stderr.String(); !regexp.MustCompile(s.want).MatchString(out) {
		t.Errorf("%s: the output does not match %s:\n%s", s.args, s.want, out)
	}
	return stdout.String()
}
