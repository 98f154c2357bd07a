"""Prints the address and the size of a module's global."""

from cu import cu, ok, start

PTX = b""".version 7.0
.target sm_80
.address_size 64
.visible .global .align 8 .b8 table[4096];
.visible .entry nothing() { ret; }
"""

start()
address, size = ok(cu.cuModuleGetGlobal(ok(cu.cuModuleLoadData(PTX + b"\0")), b"table"))
print(f"{int(address):#x} {int(size)}")
