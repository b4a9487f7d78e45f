; The function that Python calls for a program without host steps (METH_FASTCALL). It checks that each argument is an
; array of just the type, shape and layout that the program was compiled for, makes the results, does everything in
; between, and returns a list: the results, and after them the number of what nests have noted, 0 if nothing. For
; anything else, and where a rule of the program is broken, it returns NotImplemented and has done nothing.
;
; `self` is a tuple, whose first item is an array of 64-bit words: the program (see `anygpu.engines.cpu.runtime`). Words in
; capitals stand for places in objects of CPython and NumPy.

@pool_ready = external global i32
@np_ndarray = external global i8
@np_handler = external global i8
@np_default_handler = external global i8
@py_not_implemented = external global i8
declare ptr @memory_take(i64)
declare void @memory_give(ptr)
declare ptr @np_new(ptr, i32, ptr, i32, ptr, ptr, i32, i32, ptr)
declare ptr @np_set_handler(ptr)
declare ptr @np_get_handler()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyList_New(i64)
declare ptr @PyLong_FromLong(i64)
declare i32 @PyList_SetItem(ptr, i64, ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare void @PyErr_Clear()
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define private i64 @word(ptr %words, i64 %number) nounwind alwaysinline {
  %p = getelementptr i64, ptr %words, i64 %number
  %value = load i64, ptr %p
  ret i64 %value
}

define private ptr @address(ptr %words, i64 %number) nounwind alwaysinline {
  %p = getelementptr ptr, ptr %words, i64 %number
  %value = load ptr, ptr %p
  ret ptr %value
}

; Whether an object is an array of this type and number of axes, contiguous and aligned, with these lengths.
define private i1 @fits(ptr %array, ptr %descr, i64 %ndim, ptr %dims) nounwind alwaysinline {
entry:
  %typep = getelementptr i8, ptr %array, i64 OBTYPE
  %type = load ptr, ptr %typep
  %is = icmp eq ptr %type, @np_ndarray
  br i1 %is, label %fields, label %no
fields:
  %descrp = getelementptr i8, ptr %array, i64 DESCR
  %found = load ptr, ptr %descrp
  %t = icmp eq ptr %found, %descr
  %flagsp = getelementptr i8, ptr %array, i64 FLAGS
  %flags = load i32, ptr %flagsp
  %usable = and i32 %flags, USABLE
  %u = icmp eq i32 %usable, USABLE
  %ndp = getelementptr i8, ptr %array, i64 NDIM
  %nd = load i32, ptr %ndp
  %nd64 = zext i32 %nd to i64
  %n = icmp eq i64 %nd64, %ndim
  %tu = and i1 %t, %u
  %tun = and i1 %tu, %n
  br i1 %tun, label %lengths, label %no
lengths:
  %shapep = getelementptr i8, ptr %array, i64 DIMS
  %shape = load ptr, ptr %shapep
  br label %next
next:
  %axis = phi i64 [ 0, %lengths ], [ %following, %each ]
  %more = icmp slt i64 %axis, %ndim
  br i1 %more, label %each, label %yes
each:
  %one = call i64 @word(ptr %shape, i64 %axis)
  %other = call i64 @word(ptr %dims, i64 %axis)
  %same = icmp eq i64 %one, %other
  %following = add i64 %axis, 1
  br i1 %same, label %next, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

; Sets the handler for large results unless the user has set one; returns the one before.
define private ptr @use_handler() nounwind {
  %usual = call ptr @np_get_handler()
  %default = icmp eq ptr %usual, @np_default_handler
  %chosen = select i1 %default, ptr @np_handler, ptr %usual
  %before = call ptr @np_set_handler(ptr %chosen)
  call void @Py_DecRef(ptr %usual)
  ret ptr %before
}

define private void @restore_handler(ptr %before) nounwind {
entry:
  %none = icmp eq ptr %before, null
  br i1 %none, label %out, label %set
set:
  %ours = call ptr @np_set_handler(ptr %before)
  call void @Py_DecRef(ptr %ours)
  call void @Py_DecRef(ptr %before)
  br label %out
out:
  ret void
}

define ptr @call(ptr %self, ptr %arguments, i64 %given) nounwind {
entry:
  %item = getelementptr i8, ptr %self, i64 ITEMS
  %described = load ptr, ptr %item
  %wordsp = getelementptr i8, ptr %described, i64 DATA
  %words = load ptr, ptr %wordsp
  %inputs = call i64 @word(ptr %words, i64 0)
  %outputs = call i64 @word(ptr %words, i64 1)
  %slots = call i64 @word(ptr %words, i64 2)
  %small = call i64 @word(ptr %words, i64 3)
  %scratch.bytes = call i64 @word(ptr %words, i64 4)
  %status.at = call i64 @word(ptr %words, i64 5)
  %status.bytes = call i64 @word(ptr %words, i64 6)
  %lets.go = call i64 @word(ptr %words, i64 7)
  %run = call ptr @address(ptr %words, i64 8)
  %input.list = getelementptr i64, ptr %words, i64 9
  %input.words = mul i64 %inputs, 3
  %output.list = getelementptr i64, ptr %input.list, i64 %input.words
  %output.words = mul i64 %outputs, 5
  %slot.list = getelementptr i64, ptr %output.list, i64 %output.words
  %lacking = add i64 %slots, 0
  %noted = add i64 %slots, 1
  %table.size = add i64 %slots, 2
  %table = alloca ptr, i64 %table.size, align 16
  %made = alloca ptr, i64 %outputs, align 16
  %right = icmp eq i64 %given, %inputs
  ; A process that was forked has no threads yet.
  %ready = load atomic i32, ptr @pool_ready monotonic, align 4
  %started = icmp ne i32 %ready, 0
  %begin = and i1 %right, %started
  br i1 %begin, label %argument, label %other

argument:
  %a = phi i64 [ 0, %entry ], [ %a1, %taken ]
  %a.more = icmp slt i64 %a, %inputs
  br i1 %a.more, label %check, label %memory
check:
  %a.words = mul i64 %a, 3
  %a.list = getelementptr i64, ptr %input.list, i64 %a.words
  %array = call ptr @address(ptr %arguments, i64 %a)
  %descr = call ptr @address(ptr %a.list, i64 0)
  %ndim = call i64 @word(ptr %a.list, i64 1)
  %dims = call ptr @address(ptr %a.list, i64 2)
  %fits = call i1 @fits(ptr %array, ptr %descr, i64 %ndim, ptr %dims)
  br i1 %fits, label %taken, label %other
taken:
  %datap = getelementptr i8, ptr %array, i64 DATA
  %data = load ptr, ptr %datap
  %entry.a = getelementptr ptr, ptr %table, i64 %a
  store ptr %data, ptr %entry.a
  %a1 = add i64 %a, 1
  br label %argument

memory:
  %short = icmp ule i64 %scratch.bytes, STACK
  br i1 %short, label %on.stack, label %on.heap
on.stack:
  %own = alloca i8, i64 %scratch.bytes, align 64
  br label %results
on.heap:
  %taken.memory = call ptr @memory_take(i64 %scratch.bytes)
  %nothing = icmp eq ptr %taken.memory, null
  br i1 %nothing, label %other, label %results
results:
  %scratch = phi ptr [ %own, %on.stack ], [ %taken.memory, %on.heap ]
  br label %result

result:
  %r = phi i64 [ 0, %results ], [ %r1, %kept ]
  %handler = phi ptr [ null, %results ], [ %handler.now, %kept ]
  %r.more = icmp slt i64 %r, %outputs
  br i1 %r.more, label %size, label %made.all
size:
  ; Small ones come first.
  %r.large = icmp eq i64 %r, %small
  br i1 %r.large, label %large, label %make
large:
  %before = call ptr @use_handler()
  br label %make
make:
  %handler.now = phi ptr [ %handler, %size ], [ %before, %large ]
  %r.words = mul i64 %r, 5
  %r.list = getelementptr i64, ptr %output.list, i64 %r.words
  %r.ndim64 = call i64 @word(ptr %r.list, i64 0)
  %r.ndim = trunc i64 %r.ndim64 to i32
  %r.dims = call ptr @address(ptr %r.list, i64 1)
  %r.type64 = call i64 @word(ptr %r.list, i64 2)
  %r.type = trunc i64 %r.type64 to i32
  %r.slot = call i64 @word(ptr %r.list, i64 3)
  %new = call ptr @np_new(ptr @np_ndarray, i32 %r.ndim, ptr %r.dims, i32 %r.type, ptr null, ptr null, i32 0, i32 0, ptr null)
  %null = icmp eq ptr %new, null
  br i1 %null, label %lost, label %kept
kept:
  %made.r = getelementptr ptr, ptr %made, i64 %r
  store ptr %new, ptr %made.r
  %new.datap = getelementptr i8, ptr %new, i64 DATA
  %new.data = load ptr, ptr %new.datap
  %entry.r = getelementptr ptr, ptr %table, i64 %r.slot
  store ptr %new.data, ptr %entry.r
  %r1 = add i64 %r, 1
  br label %result
lost:
  call void @PyErr_Clear()
  call void @restore_handler(ptr %handler.now)
  br label %undo

made.all:
  call void @restore_handler(ptr %handler)
  br label %slot
slot:
  %s = phi i64 [ 0, %made.all ], [ %s1, %filled ]
  %s.more = icmp slt i64 %s, %slots
  br i1 %s.more, label %kind, label %clear
kind:
  ; Two words: 0 and an address, 1 and an offset in the memory of temporaries, or 2 for what is there already.
  %s.words = mul i64 %s, 2
  %s.list = getelementptr i64, ptr %slot.list, i64 %s.words
  %s.kind = call i64 @word(ptr %s.list, i64 0)
  %s.value = call i64 @word(ptr %s.list, i64 1)
  %s.given = icmp eq i64 %s.kind, 2
  br i1 %s.given, label %filled, label %fill
fill:
  %s.temporary = icmp eq i64 %s.kind, 1
  %s.base = select i1 %s.temporary, ptr %scratch, ptr null
  %s.pointer = getelementptr i8, ptr %s.base, i64 %s.value
  %entry.s = getelementptr ptr, ptr %table, i64 %s
  store ptr %s.pointer, ptr %entry.s
  br label %filled
filled:
  %s1 = add i64 %s, 1
  br label %slot

clear:
  %lacking.at = getelementptr ptr, ptr %table, i64 %lacking
  store ptr null, ptr %lacking.at
  %noted.at = getelementptr ptr, ptr %table, i64 %noted
  store ptr null, ptr %noted.at
  %status = getelementptr i8, ptr %scratch, i64 %status.at
  call void @llvm.memset.p0.i64(ptr %status, i8 0, i64 %status.bytes, i1 false)
  %long = icmp ne i64 %lets.go, 0
  br i1 %long, label %let.go, label %stay
let.go:
  %thread = call ptr @PyEval_SaveThread()
  call void %run(ptr %table)
  call void @PyEval_RestoreThread(ptr %thread)
  br label %look
stay:
  call void %run(ptr %table)
  br label %look

look:
  %marked = load ptr, ptr %lacking.at
  %lacked = icmp ne ptr %marked, null
  br label %rule
rule:
  %w = phi i64 [ 0, %look ], [ %w4, %rule.each ]
  %broken = phi i1 [ %lacked, %look ], [ %broken.now, %rule.each ]
  %w.more = icmp slt i64 %w, %status.bytes
  br i1 %w.more, label %rule.each, label %judge
rule.each:
  %w.at = getelementptr i8, ptr %status, i64 %w
  %w.found = load i32, ptr %w.at
  %w.set = icmp ne i32 %w.found, 0
  %broken.now = or i1 %broken, %w.set
  %w4 = add i64 %w, 4
  br label %rule
judge:
  br i1 %broken, label %undo, label %answer

answer:
  call void @release(ptr %scratch, i64 %scratch.bytes)
  %length = add i64 %outputs, 1
  %list = call ptr @PyList_New(i64 %length)
  %bits = load i64, ptr %noted.at
  %said = call ptr @PyLong_FromLong(i64 %bits)
  %set.last = call i32 @PyList_SetItem(ptr %list, i64 %outputs, ptr %said)
  br label %item.next
item.next:
  %i = phi i64 [ 0, %answer ], [ %i1, %item.each ]
  %i.more = icmp slt i64 %i, %outputs
  br i1 %i.more, label %item.each, label %done
item.each:
  %i.words = mul i64 %i, 5
  %i.list = getelementptr i64, ptr %output.list, i64 %i.words
  %i.place = call i64 @word(ptr %i.list, i64 4)
  %i.result = call ptr @address(ptr %made, i64 %i)
  %set = call i32 @PyList_SetItem(ptr %list, i64 %i.place, ptr %i.result)
  %i1 = add i64 %i, 1
  br label %item.next
done:
  ret ptr %list

undo:
  %count = phi i64 [ %r, %lost ], [ %outputs, %judge ]
  call void @release(ptr %scratch, i64 %scratch.bytes)
  br label %drop
drop:
  %d = phi i64 [ 0, %undo ], [ %d1, %drop.each ]
  %d.more = icmp slt i64 %d, %count
  br i1 %d.more, label %drop.each, label %other
drop.each:
  %d.result = call ptr @address(ptr %made, i64 %d)
  call void @Py_DecRef(ptr %d.result)
  %d1 = add i64 %d, 1
  br label %drop
other:
  call void @Py_IncRef(ptr @py_not_implemented)
  ret ptr @py_not_implemented
}

define private void @release(ptr %scratch, i64 %bytes) nounwind alwaysinline {
entry:
  %short = icmp ule i64 %bytes, STACK
  br i1 %short, label %out, label %give
give:
  call void @memory_give(ptr %scratch)
  br label %out
out:
  ret void
}
